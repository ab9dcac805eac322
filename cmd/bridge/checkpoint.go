package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/deltabridge/deltabridge/internal/bridge"
	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/checkpoint"
	"github.com/deltabridge/deltabridge/internal/informer"
	"github.com/deltabridge/deltabridge/internal/message"
	"github.com/deltabridge/deltabridge/internal/publisher"
)

// otherClusterError means that the stream holds another cluster's history under the name of this one.
type otherClusterError struct{ name, published, found string }

// Error says what was found, and what to do in either case.
func (e *otherClusterError) Error() string {
	return fmt.Sprintf("the stream holds what was published of another cluster as %q: its kube-system namespace has the uid %s, this one's has %s; "+
		"give this cluster a BRIDGE_CLUSTER of its own, or, if it takes the other one's place, set BRIDGE_ACCEPT_CLUSTER_UID=%s",
		e.name, e.published, e.found, e.found)
}

// takeEpoch appends a writer record with the next epoch. published is the uid of the cluster that the watermarks are of, for
// a stream whose limits have taken the last record. It returns the epoch, and the first one of the cluster's present
// history, zero if there is only one.
func (b *broker) takeEpoch(ctx context.Context, clusterUID, published string, rewound bool) (epoch, history uint64, err error) {
	epoch, err = publisher.AppendWriterRecord(ctx, b.Conn, b.config.Stream, b.scheme.WriterSubject(),
		func(last message.WriterRecord, epoch, expectedLastSeq uint64) (*message.Message, error) {
			history = last.Rewound
			if last.ClusterUID == "" {
				last.ClusterUID = published
			}
			if last.ClusterUID != "" && clusterUID != "" && last.ClusterUID != clusterUID {
				if b.config.AcceptClusterUID != clusterUID {
					return nil, &otherClusterError{name: b.config.Cluster, published: last.ClusterUID, found: clusterUID}
				}
				b.log.Warn("another cluster takes over the name, everything is compared anew",
					slog.String("cluster", b.config.Cluster), slog.String("clusterUID", clusterUID), slog.String("before", last.ClusterUID))
				history = epoch
			}
			if rewound {
				history = epoch
			}
			record := message.WriterRecord{
				Epoch: epoch, Holder: b.holder, ClusterUID: clusterUID, Time: time.Now(), Rewound: history,
			}
			if record.ClusterUID == "" {
				record.ClusterUID = last.ClusterUID
			}
			return b.encoder.EncodeWriter(record, expectedLastSeq)
		})
	return epoch, history, err
}

// streamCheckpoint is bridge.Checkpoint on the ledger and the watermarks of one session.
type streamCheckpoint struct {
	scheme     message.Scheme
	ledger     *checkpoint.Ledger
	watermarks *publisher.Watermarks
	clusterUID string
	history    uint64 // first epoch of the cluster's present history
}

var _ bridge.Checkpoint = (*streamCheckpoint)(nil)

// Resources implements bridge.Checkpoint.
func (s *streamCheckpoint) Resources() []schema.GroupResource {
	var out []schema.GroupResource
	for _, subject := range s.ledger.Resources() {
		if gr, err := s.scheme.ParseResource(subject); err == nil {
			out = append(out, gr)
		}
	}
	return out
}

// Subjects implements bridge.Checkpoint.
func (s *streamCheckpoint) Subjects(gr schema.GroupResource) int {
	return s.ledger.Count(s.scheme.ResourceSubject(gr))
}

// Objects implements bridge.Checkpoint. An object whose name is too long for a subject is not among them, for its name
// cannot be told from it.
func (s *streamCheckpoint) Objects(gr schema.GroupResource) []informer.Known {
	var out []informer.Known
	s.ledger.Each(s.scheme.ResourceSubject(gr), func(subject string, stored change.Stored) {
		if stored.Op.Gone() {
			return
		}
		ref, err := s.scheme.Parse(subject)
		if err != nil {
			return
		}
		out = append(out, informer.Known{Namespace: ref.Namespace, Name: ref.Name, UID: stored.UID, RV: stored.RV})
	})
	return out
}

// Stored implements bridge.Checkpoint.
func (s *streamCheckpoint) Stored(ref change.ObjectRef) (change.Stored, bool) {
	return s.ledger.Get(s.scheme.Subject(ref))
}

// Watermark implements bridge.Checkpoint.
func (s *streamCheckpoint) Watermark(gr schema.GroupResource) (w message.Watermark, void string) {
	w, ok := s.watermarks.Found(gr)
	if !ok {
		if s.watermarks.Unreadable(gr) {
			return message.Watermark{}, "unreadable"
		}
		return message.Watermark{}, ""
	}
	return w, voidReason(w, s.clusterUID, s.history)
}

// Append implements bridge.Checkpoint.
func (s *streamCheckpoint) Append(ctx context.Context, w message.Watermark) error {
	return s.watermarks.Append(ctx, w)
}

// voidReason says in a word why a watermark's version says nothing of the cluster as it is, empty if it does.
func voidReason(w message.Watermark, clusterUID string, history uint64) string {
	switch {
	case w.ClusterUID != "" && clusterUID != "" && w.ClusterUID != clusterUID:
		return "other-cluster"
	case w.Epoch < history:
		return "rewind"
	}
	return ""
}
