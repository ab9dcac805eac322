package message

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// WriterFormat is the format of writer records that this program reads and writes.
const WriterFormat = 1

// ErrFormat is wrapped by the error for a record whose format this program does not know: most likely a newer one
// wrote it.
var ErrFormat = errors.New("unknown format")

// WriterRecord says who writes into the stream. Each start or new leader appends one, before anything else and under
// compare-and-set, with an epoch higher than the last one's.
type WriterRecord struct {
	Format     int       `json:"format"`     // WriterFormat
	Epoch      uint64    `json:"epoch"`      // rises with each record
	Holder     string    `json:"holder"`     // which process, in words that people find it by
	ClusterUID string    `json:"clusterUID"` // uid of the cluster's kube-system namespace
	Time       time.Time `json:"time"`       // when it was written, UTC
	// Rewound is the first epoch that wrote of the cluster's present history, zero if there was never another one: after a
	// restore from a backup, versions of messages with a lower epoch say nothing of what is newer.
	Rewound uint64 `json:"rewound,omitempty"`
}

// ParseWriterRecord reads the body of a writer record. Members that it does not know are ignored; a format that it does
// not know is an error that wraps ErrFormat.
func ParseWriterRecord(body []byte) (WriterRecord, error) {
	var r WriterRecord
	if err := json.Unmarshal(body, &r); err != nil {
		return WriterRecord{}, fmt.Errorf("writer record: %w", err)
	}
	if r.Format != WriterFormat {
		return WriterRecord{}, fmt.Errorf("writer record: %w %d, this program knows %d", ErrFormat, r.Format, WriterFormat)
	}
	if r.Epoch == 0 || r.Holder == "" {
		return WriterRecord{}, errors.New("writer record: no epoch or no holder")
	}
	return r, nil
}

// EncodeWriter makes the message that appends a writer record, whose Format it sets. expectedLastSeq is the sequence of
// the last record, zero if there is none: of two writers that both read it only one is accepted. The message is in binary
// mode whatever the encoder's, so that any bridge can read it.
func (e *Encoder) EncodeWriter(r WriterRecord, expectedLastSeq uint64) (*Message, error) {
	if r.Epoch == 0 || r.Holder == "" {
		return nil, errors.New("encode writer record: no epoch or no holder")
	}
	r.Format = WriterFormat
	r.Time = r.Time.UTC().Truncate(time.Microsecond)
	body, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode writer record: %w", err)
	}
	epochText := strconv.FormatUint(r.Epoch, 10)
	id := "writer/" + epochText + "/" + EncodeHeaderValue(r.Holder)
	h := newHeader(11)
	h.set(HeaderMsgID, id)
	h.set(HeaderExpectedStream, e.stream)
	h.set(HeaderExpectedSequence, strconv.FormatUint(expectedLastSeq, 10))
	h.set(HeaderSpecVersion, specVersion)
	h.set(HeaderType, TypeWriter)
	h.set(HeaderSource, e.source)
	h.set(HeaderID, id)
	h.set(HeaderTime, r.Time.Format(timeLayout))
	h.set(HeaderEpoch, epochText)
	h.set(HeaderContentType, ContentJSON)
	return &Message{Subject: e.scheme.WriterSubject(), ID: id, Header: h.header, Body: body, base: id}, nil
}
