package informer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// initialEventsTimeout is how long a streaming list may be silent before it is given up for a plain list. Some
// aggregated APIs accept the request and never end the initial events.
const initialEventsTimeout = 30 * time.Second

// errInitialEventsStalled means that a streaming list went silent before its end.
var errInitialEventsStalled = errors.New("the streaming list went silent before its end")

// stream is a watch.Interface over the raw bytes of a watch response. One goroutine reads, scans and hands on; it ends
// when the response ends, when a frame is not valid, or on Stop.
type stream struct {
	lw     *ListWatch
	body   io.ReadCloser
	ctx    context.Context
	cancel context.CancelCauseFunc
	result chan watch.Event
	done   chan struct{}

	// initial is true until the bookmark that ends a streaming list; since is then what a listed object carries.
	initial bool
	since   string
}

var _ watch.Interface = (*stream)(nil)

// resultBuffer is how many scanned events may wait for the Reflector. It lets the scanner run ahead while the Reflector
// holds the FIFO's lock; the events are in memory in any case.
const resultBuffer = 64

func newStream(ctx context.Context, cancel context.CancelCauseFunc, lw *ListWatch, body io.ReadCloser, initial bool, since string) *stream {
	s := &stream{
		lw:      lw,
		body:    body,
		ctx:     ctx,
		cancel:  cancel,
		result:  make(chan watch.Event, resultBuffer),
		done:    make(chan struct{}),
		initial: initial,
		since:   since,
	}
	go s.run()
	return s
}

// ResultChan returns the channel of events. It is closed when the watch has ended.
func (s *stream) ResultChan() <-chan watch.Event { return s.result }

// Stop ends the watch and waits for its goroutine. It may be called more than once.
func (s *stream) Stop() {
	s.cancel(errors.New("watch stopped"))
	<-s.done
}

func (s *stream) run() {
	defer close(s.done)
	defer close(s.result)
	defer s.cancel(nil)
	defer func() { _ = s.body.Close() }()

	var stall *time.Timer
	if s.initial {
		stall = time.AfterFunc(initialEventsTimeout, func() { s.cancel(errInitialEventsStalled) })
		defer stall.Stop()
	}

	frames := newFrameReader(s.body)
	var f frame
	var names interned
	for {
		line, err := frames.next(&f)
		if err != nil {
			s.ended(err)
			return
		}
		if stall != nil {
			stall.Reset(initialEventsTimeout)
		}
		event, err := s.event(line, &f, &names)
		if err != nil {
			s.ended(err)
			return
		}
		if o, ok := event.Object.(*Object); ok {
			if o.rv != "" && !s.initial {
				s.lw.follow(o.rv)
			}
			if event.Type != watch.Bookmark && s.lw.keep != nil && !s.lw.keep(o.namespace) {
				continue
			}
			if o.initialEventsEnd && s.initial {
				s.initial = false
				stall.Stop()
				stall = nil
				s.lw.listSucceeded(o.rv)
			}
		}
		select {
		case s.result <- event:
		case <-s.ctx.Done():
			s.ended(context.Cause(s.ctx))
			return
		}
	}
}

// event turns a scanned frame into what the Reflector takes.
func (s *stream) event(line []byte, f *frame, names *interned) (watch.Event, error) {
	typ := watch.EventType(f.typ)
	switch typ {
	case watch.Added, watch.Modified, watch.Deleted, watch.Bookmark:
		raw := withTypeMeta(line[f.start:f.end], &f.meta, s.lw.resource.apiVersion(), s.lw.resource.Kind)
		o := names.object(&f.meta, raw)
		if o.rv == "" || (o.name == "" && typ != watch.Bookmark) {
			return watch.Event{}, fmt.Errorf("%w: %s without name or resourceVersion", errBadFrame, typ)
		}
		o.listed, o.since = s.initial && typ == watch.Added, s.since
		return watch.Event{Type: constantType(typ), Object: o}, nil
	case watch.Error:
		status := &metav1.Status{}
		if err := json.Unmarshal(line[f.start:f.end], status); err != nil {
			return watch.Event{}, fmt.Errorf("%w: ERROR without a Status: %w", errBadFrame, err)
		}
		s.lw.watchEnded(apierrors.FromObject(status))
		return watch.Event{Type: watch.Error, Object: status}, nil
	}
	return watch.Event{}, fmt.Errorf("%w: unknown type %q", errBadFrame, f.typ)
}

// constantType maps a scanned type to the constant, so that no event keeps a string of its own.
func constantType(t watch.EventType) watch.EventType {
	switch t {
	case watch.Added:
		return watch.Added
	case watch.Modified:
		return watch.Modified
	case watch.Deleted:
		return watch.Deleted
	}
	return watch.Bookmark
}

// ended records why the watch is over. The channel is closed without an error event, so that the Reflector watches on
// from the last version it has seen, instead of listing again; only a streaming list that cannot be completed says so,
// because the Reflector then falls back to a plain list.
func (s *stream) ended(err error) {
	switch {
	case errors.Is(err, errBadFrame):
		s.lw.metrics.BadFrame(s.lw.resource.GVR.GroupResource())
		s.lw.log.Warn("watch sent an invalid frame, watching again from the last version", "resource", s.lw.resource.String(), "error", err)
		s.lw.watchEnded(err)
	case errors.Is(context.Cause(s.ctx), errInitialEventsStalled):
		s.lw.streamingListFailed()
		select {
		case s.result <- watch.Event{Type: watch.Error, Object: &metav1.Status{
			Status: metav1.StatusFailure, Code: 406, Reason: metav1.StatusReasonNotAcceptable, Message: errInitialEventsStalled.Error(),
		}}:
		default: // the channel is full: somebody is reading, and sees it closed
		}
	case s.ctx.Err() != nil || errors.Is(err, io.EOF):
		s.lw.watchEnded(nil)
	default:
		s.lw.watchEnded(err)
	}
}
