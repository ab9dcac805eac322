package publisher

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/deltabridge/deltabridge/internal/message"
)

// ErrFenced means that a message of a newer epoch was met: another writer has taken over, and this one must not write.
var ErrFenced = errors.New("another writer has taken over")

// ErrForeign means that what stands on a watermark's subject is not one of ours, and is not written over.
var ErrForeign = errors.New("not written over")

// WatermarkEncoder makes the message that appends a watermark; see message.Encoder.
type WatermarkEncoder interface {
	EncodeWatermark(w message.Watermark, expectedLastSeq uint64) (*message.Message, error)
}

// WatermarkOptions configure Watermarks.
type WatermarkOptions struct {
	Conn    *Conn
	Stream  string
	Scheme  message.Scheme
	Encoder WatermarkEncoder
}

// Watermarks reads and appends the watermarks of a cluster's resources, under compare-and-set. It is safe for concurrent
// use.
type Watermarks struct {
	options WatermarkOptions
	epoch   uint64 // this writer's; a watermark of a higher one fences

	mu      sync.Mutex
	last    map[schema.GroupResource]uint64 // sequence of the subject's last message
	found   map[schema.GroupResource]message.Watermark
	foreign map[schema.GroupResource]error // what stands there is not ours, and is not written over
	unread  []Foreign
}

// ReadWatermarks reads the last watermark of every resource. TakeOver must come before the first Append.
func ReadWatermarks(ctx context.Context, o WatermarkOptions) (*Watermarks, error) {
	w := &Watermarks{
		options: o,
		last:    map[schema.GroupResource]uint64{},
		found:   map[schema.GroupResource]message.Watermark{},
		foreign: map[schema.GroupResource]error{},
	}
	seen := map[string]bool{}
	_, err := eachLast(ctx, o.Conn, o.Stream, o.Scheme.ResourcesFilter(), withBodies, func(m jetstream.Msg, sequence uint64) bool {
		w.note(m.Subject(), &record{subject: m.Subject(), sequence: sequence, header: m.Headers(), body: m.Data()})
		isNew := !seen[m.Subject()]
		seen[m.Subject()] = true
		return isNew
	})
	if err != nil {
		return nil, fmt.Errorf("read the watermarks: %w", err)
	}
	return w, nil
}

// TakeOver appends every watermark anew that is valid under the writer's epoch, so that a former writer finds those
// subjects moved on. valid tells whether a watermark still says something of the cluster; one that does not is left as it
// is until the resource has a new one. TakeOver returns when all are stored; the error wraps ErrFenced if another writer
// has taken over.
func (w *Watermarks) TakeOver(ctx context.Context, epoch uint64, valid func(message.Watermark) bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.epoch = epoch
	for gr := range w.found {
		for { // until it is stored, or the subject holds something else
			current, ours := w.found[gr]
			if !ours || !valid(current) {
				break
			}
			stored, err := w.attempt(ctx, current)
			if err != nil {
				return fmt.Errorf("take over the watermark of %s: %w", gr, err)
			}
			if stored {
				break
			}
		}
	}
	return nil
}

// ClusterUID returns the uid of the cluster that the newest of the watermarks says it is of, empty if none says.
func (w *Watermarks) ClusterUID() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	newest := message.Watermark{}
	for _, found := range w.found {
		if found.ClusterUID != "" && !found.Time.Before(newest.Time) {
			newest = found
		}
	}
	return newest.ClusterUID
}

// note records the last message on a resource's subject; nil for none.
func (w *Watermarks) note(subject string, r *record) {
	gr, err := w.options.Scheme.ParseResource(subject)
	if err != nil {
		w.unread = append(w.unread, Foreign{Subject: subject, Sequence: r.sequence, Err: err})
		return
	}
	delete(w.found, gr)
	delete(w.foreign, gr)
	delete(w.last, gr)
	if r == nil {
		return
	}
	w.last[gr] = r.sequence
	if r.header.Get(message.HeaderType) != message.TypeWatermark {
		w.foreign[gr] = fmt.Errorf("message %d on %s is not a watermark: %s is %.100q", r.sequence, subject, message.HeaderType, r.header.Get(message.HeaderType))
		return
	}
	found, err := message.ParseWatermark(r.body, w.options.Scheme.Cluster, gr)
	switch {
	case err == nil:
		w.found[gr] = found
	case errors.Is(err, message.ErrFormat):
		// Of a newer version of this program, most likely: it is not understood, but what this one knows may follow it.
		w.unread = append(w.unread, Foreign{Subject: subject, Sequence: r.sequence, Err: err})
	default:
		w.foreign[gr] = fmt.Errorf("message %d on %s: %w", r.sequence, subject, err)
	}
}

// Found returns the resource's watermark as it was found; false if there is none that can be read.
func (w *Watermarks) Found(gr schema.GroupResource) (message.Watermark, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	found, ok := w.found[gr]
	return found, ok
}

// Unreadable reports whether there is a message on the subject of the resource's watermarks that cannot be read.
func (w *Watermarks) Unreadable(gr schema.GroupResource) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok := w.found[gr]
	return !ok && w.last[gr] > 0
}

// Foreign returns what stands on the watermarks' subjects and cannot be read.
func (w *Watermarks) Foreign() []Foreign {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := append([]Foreign(nil), w.unread...)
	for gr, err := range w.foreign {
		out = append(out, Foreign{Subject: w.options.Scheme.ResourceSubject(gr), Sequence: w.last[gr], Err: err})
	}
	return out
}

// appendAttempts is how often Append tries anew when the subject's last message is not the one it knows.
const appendAttempts = 5

// Append appends a watermark and blocks until it is stored. After an error it may be stored nevertheless; a later one is
// appended all the same. The error wraps ErrFenced if another writer has taken over.
func (w *Watermarks) Append(ctx context.Context, mark message.Watermark) error {
	gr := mark.GroupResource()
	w.mu.Lock()
	defer w.mu.Unlock()
	for range appendAttempts {
		if err := w.foreign[gr]; err != nil {
			return fmt.Errorf("%w: %w", ErrForeign, err)
		}
		stored, err := w.attempt(ctx, mark)
		if err != nil || stored {
			return err
		}
	}
	return fmt.Errorf("watermark of %s: the subject's last message keeps changing", gr)
}

// attempt appends a watermark after the subject's last known message. If that is not the last any more it returns false,
// and the one that is has been noted.
func (w *Watermarks) attempt(ctx context.Context, mark message.Watermark) (bool, error) {
	gr := mark.GroupResource()
	mark.Time = time.Now()
	expected := w.last[gr]
	m, err := w.options.Encoder.EncodeWatermark(mark, expected)
	if err != nil {
		return false, err
	}
	sequence, err := appendRecord(ctx, w.options.Conn, w.options.Stream, m, expected)
	if err != nil {
		return false, err
	}
	if sequence > 0 {
		w.last[gr] = sequence
		return true, nil
	}
	r, err := w.options.Conn.leaderRead(ctx, w.options.Stream, leaderRequest{LastBySubject: m.Subject})
	if err != nil {
		return false, err
	}
	w.note(m.Subject, r)
	if r != nil && epochOf(r.header) > w.epoch {
		return false, fmt.Errorf("message %d on %s has epoch %d, ours is %d: %w", r.sequence, r.subject, epochOf(r.header), w.epoch, ErrFenced)
	}
	return false, nil
}
