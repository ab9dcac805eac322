package message

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// WatermarkFormat is the format of watermarks that this program reads and writes.
const WatermarkFormat = 1

// ErrOtherCluster is wrapped by the error for a watermark that says it is of another cluster, or of another resource,
// than the subject it is on.
var ErrOtherCluster = errors.New("of another cluster or resource")

// Watermark says that every change of a resource up to a version is in the stream before it.
type Watermark struct {
	Format     int       `json:"format"`     // WatermarkFormat
	Cluster    string    `json:"cluster"`    // the cluster's name
	ClusterUID string    `json:"clusterUID"` // uid of the cluster's kube-system namespace, empty if it could not be read
	Group      string    `json:"group"`      // API group, empty for the core group
	Resource   string    `json:"resource"`   // plural resource name
	Scope      string    `json:"scope"`      // what of the resource is published, and in which form; opaque
	RV         string    `json:"rv"`         // resourceVersion
	Time       time.Time `json:"time"`       // when it was written, UTC
	Epoch      uint64    `json:"epoch"`      // the writer's
	// Subjects is how many objects' subjects of the resource the stream had when it was written, deleted objects included.
	// Fewer later mean that the stream has forgotten some. Zero says nothing.
	Subjects int `json:"subjects,omitempty"`
	// Gap is the last range of versions, "<from>-<to>", of which only the net difference could be published.
	Gap string `json:"gap,omitempty"`
}

// GroupResource returns the resource that the watermark is of.
func (w *Watermark) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: w.Group, Resource: w.Resource}
}

// ParseWatermark reads the body of a watermark that stands on the subject of the given cluster's resource. Members that
// it does not know are ignored. The error wraps ErrFormat for a format that it does not know, and ErrOtherCluster for a
// watermark that belongs elsewhere.
func ParseWatermark(body []byte, cluster string, gr schema.GroupResource) (Watermark, error) {
	fail := func(err error) (Watermark, error) {
		return Watermark{}, fmt.Errorf("watermark of %s: %w", gr, err)
	}
	var w Watermark
	if err := json.Unmarshal(body, &w); err != nil {
		return fail(err)
	}
	switch {
	case w.Format != WatermarkFormat:
		return fail(fmt.Errorf("%w %d, this program knows %d", ErrFormat, w.Format, WatermarkFormat))
	case w.Cluster != cluster || w.GroupResource() != gr:
		return fail(fmt.Errorf("%w: it says %.100q, %.300q", ErrOtherCluster, w.Cluster, w.GroupResource()))
	case w.RV == "" || w.Epoch == 0:
		return fail(errors.New("no rv or no epoch"))
	}
	return w, nil
}

// EncodeWatermark makes the message that appends a watermark; Format, Cluster and Epoch are set by the encoder.
// expectedLastSeq is the sequence of the last message on the resource's subject, zero if there is none. The message is in
// binary mode whatever the encoder's, so that any bridge can read it.
func (e *Encoder) EncodeWatermark(w Watermark, expectedLastSeq uint64) (*Message, error) {
	if w.Resource == "" || w.RV == "" {
		return nil, errors.New("encode watermark: no resource or no rv")
	}
	ep := e.epoch.Load()
	w.Format, w.Cluster, w.Epoch = WatermarkFormat, e.scheme.Cluster, ep.n
	w.Time = w.Time.UTC().Truncate(time.Microsecond)
	body, err := json.Marshal(w)
	if err != nil {
		return nil, fmt.Errorf("encode watermark: %w", err)
	}
	gr := w.GroupResource()
	// The same version may be written again by one writer, where somebody removed the message; hence the sequence.
	sequence := strconv.FormatUint(expectedLastSeq, 10)
	id := "watermark/" + EncodeHeaderValue(gr.String()) + "/" + EncodeHeaderValue(w.RV) + "/" + ep.text + "/" + sequence
	h := newHeader(13)
	h.set(HeaderMsgID, id)
	h.set(HeaderExpectedStream, e.stream)
	h.set(HeaderExpectedSequence, sequence)
	h.set(HeaderSpecVersion, specVersion)
	h.set(HeaderType, TypeWatermark)
	h.set(HeaderSource, e.source)
	h.set(HeaderID, id)
	h.set(HeaderSubject, EncodeHeaderValue(gr.String()))
	h.set(HeaderTime, w.Time.Format(timeLayout))
	h.set(HeaderRV, EncodeHeaderValue(w.RV))
	h.set(HeaderEpoch, ep.text)
	h.set(HeaderContentType, ContentJSON)
	return &Message{Subject: e.scheme.ResourceSubject(gr), ID: id, Header: h.header, Body: body, base: id}, nil
}

// ParseResource is the inverse of ResourceSubject. The error wraps ErrToken.
func (s Scheme) ParseResource(subject string) (schema.GroupResource, error) {
	ref, err := s.Parse(subject + "." + noNamespace + ".x")
	if err != nil {
		return schema.GroupResource{}, fmt.Errorf("resource %w", err)
	}
	return ref.GroupResource(), nil
}

// ResourcesFilter returns the filter that selects the watermarks and nothing else.
func (s Scheme) ResourcesFilter() string { return s.WriterSubject() + ".*.*" }
