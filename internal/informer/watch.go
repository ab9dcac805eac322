package informer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// shortWatch is how long a watch that brings nothing must last at least. One that ends sooner is not opened again at
// once.
const shortWatch = time.Second

// provenWatch is how long a watch must last to count as working again, where the last ones failed.
const provenWatch = 10 * time.Second

// progressDeadline is how long a watch may bring neither event nor bookmark. API servers send a bookmark about every
// minute. A connection that leads nowhere any more, and a server that was restored from a backup and lets nothing pass up
// to the version that it had, look just like a resource in which nothing happens.
const progressDeadline = 3 * time.Minute

// probeTimeout bounds the look at the server's version after a silence.
const probeTimeout = 30 * time.Second

// errSilent means that a watch was silent for longer than a working one is.
var errSilent = errors.New("the watch brought neither event nor bookmark for too long")

// errHeld means that there was no credit for what a watch brought.
var errHeld = errors.New("the watch is held: too much is not acknowledged yet")

// stream is a watch.Interface over the raw bytes of a watch response. One goroutine reads, scans and hands on; it ends
// when the response ends, when a frame is not valid, or on Stop.
type stream struct {
	lw     *ListWatch
	body   io.ReadCloser
	ctx    context.Context // of the request, ends the reading
	cancel context.CancelCauseFunc
	result chan watch.Event
	done   chan struct{} // closed when the goroutine has ended

	// unread is closed when nobody reads the result any more: the watch was stopped, or its owner's context has ended.
	unread <-chan struct{}
	stop   context.CancelFunc

	opened time.Time
	// from is the version that the watch began at, last the last one that the server sent and that is dealt with, and
	// marked that of the last sentinel.
	from, last, marked string
}

var _ watch.Interface = (*stream)(nil)

// resultBuffer is how many scanned events may wait for the Reflector. It lets the scanner run ahead while the Reflector
// holds the FIFO's lock; the events are in memory in any case.
const resultBuffer = 64

// newStream returns a running stream over the body of a watch response from the given version. The owner's context is
// the one that cancel's context was made of.
func newStream(owner, ctx context.Context, cancel context.CancelCauseFunc, lw *ListWatch, body io.ReadCloser, from string) *stream {
	unread, stop := context.WithCancel(owner)
	s := &stream{
		lw:     lw,
		body:   body,
		ctx:    ctx,
		cancel: cancel,
		result: make(chan watch.Event, resultBuffer),
		done:   make(chan struct{}),
		unread: unread.Done(),
		stop:   stop,
		opened: time.Now(),
		from:   from,
		last:   from,
	}
	go s.run()
	return s
}

// ResultChan returns the channel of events. It is closed when the watch has ended.
func (s *stream) ResultChan() <-chan watch.Event { return s.result }

// Stop ends the watch and waits for its goroutine. It may be called more than once.
func (s *stream) Stop() {
	s.stop()
	s.cancel(errors.New("watch stopped"))
	<-s.done
}

func (s *stream) run() {
	defer close(s.done)
	defer s.stop()
	defer close(s.result)
	var guard sync.WaitGroup
	guard.Go(s.guard)
	defer guard.Wait()
	defer s.cancel(nil)
	defer func() { _ = s.body.Close() }()
	proven := time.AfterFunc(provenWatch, s.lw.watchLasts)
	err := s.read()
	proven.Stop()
	s.ended(err)
}

// guard ends the watch when it is silent for too long, until the request's context ends.
func (s *stream) guard() {
	deadline := s.lw.deadline
	s.lw.lastHeard.CompareAndSwap(0, s.opened.UnixNano())
	if s.lw.silence() > deadline {
		// Watches that each end before they are silent for too long show no more than one that does not.
		_ = s.checkBehind() // whatever the answer, the watch goes on or was ended
	}
	for wait := deadline; ; {
		timer := time.NewTimer(wait)
		select {
		case <-s.ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		if silent := min(s.lw.silence(), time.Since(s.opened)); silent < deadline {
			wait = deadline - silent
			continue
		}
		s.doubt()
		wait = deadline
	}
}

// doubt finds out what a silence means. A watch that should have brought a bookmark is ended, so that it is opened again
// from the last version.
func (s *stream) doubt() {
	err := s.checkBehind()
	switch {
	case s.lw.held.Load(): // it is not the server that is silent
	case s.lw.silence() < s.lw.deadline: // it has gone on meanwhile
	case err != nil || !s.lw.mayBeSilent():
		s.cancel(errSilent)
	}
}

// checkBehind compares the last version with the one that the server has now. If the server is behind, that is reported,
// and the watch ended. The error says why it could not be asked.
func (s *stream) checkBehind() error {
	ctx, cancel := context.WithTimeout(s.ctx, probeTimeout)
	defer cancel()
	known := s.lw.Position()
	served, err := currentVersion(ctx, s.lw.client, s.lw.resource, s.lw.namespace)
	if err == nil && behind(served, known) && s.lw.rewound(known, served) {
		s.cancel(errRewound)
	}
	return err
}

// read hands on events until there are no more, and returns why: io.EOF or another error of the body, an error that
// wraps errBadFrame, the API's error of an ERROR frame, or errHeld.
func (s *stream) read() error {
	s.mark(s.from) // what the watch begins after has been handed on
	frames := newFrameReader(s.body)
	var f frame
	var names interned
	for {
		line, err := frames.next(&f)
		if err != nil {
			return err
		}
		event, o, err := s.event(line, &f, &names)
		if err != nil {
			return err
		}
		s.lw.heard()
		switch {
		case event.Type == watch.Bookmark:
			if behind(o.rv, s.last) {
				_ = s.checkBehind() // the server is, or the bookmark is wrong and moves nothing
				continue
			}
			s.lw.bookmarked()
		case s.lw.keep != nil && !s.lw.keep(o.namespace):
			s.passed(o.rv)
			continue
		default:
			if err := s.admit(o); err != nil {
				return err
			}
		}
		select {
		case s.result <- event:
			s.passed(o.rv)
			if event.Type == watch.Bookmark {
				s.mark(o.rv)
			}
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
	}
}

// admit takes the credit for an event. It returns errHeld if there was none for too long; then the watch is to end before
// the event, and the next one to begin with it.
func (s *stream) admit(o *Object) error {
	gate := s.lw.intake.gate
	credit := gate.cost(len(o.raw()))
	if !gate.tryTake(credit) {
		s.lw.held.Store(true)
		patience, cancel := context.WithTimeout(s.ctx, holdPatience)
		err := gate.take(patience, credit)
		cancel()
		switch {
		case s.ctx.Err() != nil:
			if err == nil {
				gate.give(credit)
			}
			return context.Cause(s.ctx)
		case err != nil:
			return errHeld
		}
		s.lw.held.Store(false)
		s.lw.heard()
	}
	o.load.event = s.lw.intake.enter(credit)
	return nil
}

// mark hands on a sentinel: the listener has everything up to the version once it sees it.
func (s *stream) mark(rv string) {
	s.marked = rv
	s.hand(s.lw.sentinel(rv))
}

// passed moves the version up to which the server's events are dealt with. What could not be handed on must not: the next
// watch begins after it.
func (s *stream) passed(rv string) {
	s.last = rv
	s.lw.follow(rv)
}

// event turns a scanned frame into what the Reflector takes. An ERROR frame is returned as an error.
func (s *stream) event(line []byte, f *frame, names *interned) (watch.Event, *Object, error) {
	var typ watch.EventType // the constant, so that no event keeps a string of its own
	switch watch.EventType(f.typ) {
	case watch.Added:
		typ = watch.Added
	case watch.Modified:
		typ = watch.Modified
	case watch.Deleted:
		typ = watch.Deleted
	case watch.Bookmark:
		typ = watch.Bookmark
	case watch.Error:
		status := &metav1.Status{}
		if err := json.Unmarshal(line[f.start:f.end], status); err != nil {
			return watch.Event{}, nil, fmt.Errorf("%w: ERROR without a Status: %w", errBadFrame, err)
		}
		return watch.Event{}, nil, apierrors.FromObject(status)
	default:
		return watch.Event{}, nil, fmt.Errorf("%w: unknown type %q", errBadFrame, f.typ)
	}
	raw := withTypeMeta(line[f.start:f.end], &f.meta, s.lw.resource.apiVersion(), s.lw.resource.Kind)
	o := names.object(&f.meta, raw)
	if o.rv == "" || (o.name == "" && typ != watch.Bookmark) {
		return watch.Event{}, nil, fmt.Errorf("%w: %s without name or resourceVersion", errBadFrame, typ)
	}
	return watch.Event{Type: typ, Object: o}, o, nil
}

// ended decides what the Reflector does next, after all that was handed on.
//
// A watch that ends, for whatever reason, is to be opened again from the last version, since a list would lose the
// versions in between. So the channel is closed without an error, after a sentinel of that version: the Reflector may not
// know it yet, and takes a watch that brought nothing for a failure; and a list that follows must know when everything
// before it was handed on. Only a version that the server no longer has makes the Reflector list.
func (s *stream) ended(err error) {
	silent := errors.Is(context.Cause(s.ctx), errSilent)
	switch {
	case silent:
		err = errSilent
		s.lw.stalled.Store(true)
	case s.ctx.Err() != nil:
		return
	}
	badFrame := errors.Is(err, errBadFrame)
	if badFrame {
		s.lw.metrics.BadFrame(s.lw.resource.GVR.GroupResource())
	}
	failed := badFrame || silent || answered(err)
	fruitless := s.last == s.from && (failed || time.Since(s.opened) < shortWatch)
	s.lw.watchEnded(err, failed, fruitless)
	if s.last != s.marked {
		s.mark(s.last)
	}
	if expired(err) {
		s.handError(err)
	}
}

// handError hands an error to the Reflector, which tests what kind it is.
func (s *stream) handError(err error) {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	object := status.Status()
	s.hand(watch.Event{Type: watch.Error, Object: &object})
}

func (s *stream) hand(event watch.Event) {
	select {
	case s.result <- event:
	case <-s.unread:
	}
}
