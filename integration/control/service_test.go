// Package control tests the bridge's micro service on real NATS servers, with a bridge that is scripted.
package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/deltabridge/deltabridge/integration/harness"
	"github.com/deltabridge/deltabridge/internal/control"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// scripted is a bridge that does what the test says.
type scripted struct {
	publishing atomic.Bool
	resync     func(ctx context.Context, r control.Request, report func(control.Progress)) (control.Progress, error)
}

func (s *scripted) Publishing() bool { return s.publishing.Load() }
func (s *scripted) Status() any      { return map[string]any{"ready": true} }

func (s *scripted) Resync(ctx context.Context, r control.Request, report func(control.Progress)) (control.Progress, error) {
	return s.resync(ctx, r, report)
}

// rig is a service on a connection that the test can exchange.
type rig struct {
	*testing.T
	nats   *harness.NATS
	bridge *scripted
	conn   atomic.Pointer[nats.Conn]
	client *nats.Conn
	stop   func()
}

func newRig(t *testing.T) *rig {
	r := &rig{T: t, nats: harness.StartNATS(t), bridge: &scripted{}}
	r.bridge.publishing.Store(true)
	r.bridge.resync = func(_ context.Context, q control.Request, report func(control.Progress)) (control.Progress, error) {
		report(control.Progress{Resource: strings.Join(q.Resources, ","), Total: 1})
		return control.Progress{Done: true, Total: 2, Synced: 2}, nil
	}
	r.conn.Store(r.nats.Connect(t))
	r.client = r.nats.Connect(t)
	service := control.New(control.Options{
		Cluster: "c", Version: "v1.2.3", Conn: r.conn.Load, Bridge: r.bridge, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { service.Run(ctx) })
	r.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	t.Cleanup(r.stop)
	return r
}

// ask asks for a resync and returns the answers.
func (r *rig) ask() (reports []control.Progress, done control.Progress, err error) {
	request := control.Request{Resources: []string{"pods"}}
	done, err = control.Resync(r.Context(), r.client, "c", request, func(p control.Progress) { reports = append(reports, p) })
	return reports, done, err
}

func (r *rig) requireAnswer() {
	r.Helper()
	reports, done, err := r.ask()
	if err != nil || !done.Done || done.Total != 2 || len(reports) != 1 || reports[0].Resource != "pods" || reports[0].Format != 1 {
		r.Fatalf("%+v, %+v, %v", reports, done, err)
	}
}

// statusAnswers returns nil if the status endpoint answers.
func (r *rig) statusAnswers() error {
	m, err := r.client.Request(control.StatusSubject("c"), nil, 5*time.Second)
	if err == nil && string(m.Data) != `{"ready":true}` {
		err = fmt.Errorf("answer %s", m.Data)
	}
	return err
}

// awaitNobody waits until nobody answers: the server forgets subscriptions a moment after the client does.
func (r *rig) awaitNobody() {
	r.Helper()
	harness.Eventually(r, harness.Patience, func() error {
		err := r.statusAnswers()
		if errors.Is(err, nats.ErrNoResponders) {
			return nil
		}
		return fmt.Errorf("want nobody to answer, got %w", err)
	})
}

// TestFollowsTheConnection closes the service's connection, as a client does that has given up, and gives it another.
func TestFollowsTheConnection(t *testing.T) {
	r := newRig(t)
	for range 3 {
		r.requireAnswer()
		former := r.conn.Swap(nil)
		former.Close()
		r.awaitNobody()
		r.conn.Store(r.nats.Connect(t))
	}
	r.requireAnswer()
	r.nats.Stop()
	if err := r.nats.Start(); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, harness.Patience, r.statusAnswers)
	r.requireAnswer()
}

// TestFollowsTheRole has the process publish, and not: only the status is always answered.
func TestFollowsTheRole(t *testing.T) {
	r := newRig(t)
	for range 2 {
		r.requireAnswer()
		r.bridge.publishing.Store(false)
		harness.Eventually(t, harness.Patience, func() error {
			if _, _, err := r.ask(); !errors.Is(err, control.ErrNobody) {
				return fmt.Errorf("a standby answers: %w", err)
			}
			return r.statusAnswers()
		})
		r.bridge.publishing.Store(true)
	}
	r.requireAnswer()
	r.stop()
	r.awaitNobody()
}

// TestErrors has the bridge refuse and fail, and the service end in the middle.
func TestErrors(t *testing.T) {
	r := newRig(t)
	r.requireAnswer()
	for name, c := range map[string]struct {
		err        error
		code, text string
	}{
		"refused": {&control.Error{Code: control.CodeConflict, Description: "one is running"}, "409", "one is running"},
		"failed":  {errors.New("first\nsecond"), "500", "first second"},
	} {
		r.bridge.resync = func(context.Context, control.Request, func(control.Progress)) (control.Progress, error) {
			return control.Progress{Done: true, Total: 7}, c.err
		}
		_, done, err := r.ask()
		failed := (*control.Error)(nil)
		if !errors.As(err, &failed) || failed.Code != c.code || failed.Description != c.text || done.Total != 7 {
			t.Errorf("%s: %+v, %v", name, done, err)
		}
	}

	begun := make(chan struct{})
	r.bridge.resync = func(ctx context.Context, _ control.Request, report func(control.Progress)) (control.Progress, error) {
		report(control.Progress{})
		close(begun)
		<-ctx.Done()
		return control.Progress{Done: true}, ctx.Err()
	}
	go func() {
		<-begun
		r.stop()
	}()
	_, _, err := r.ask()
	failed := (*control.Error)(nil)
	if !errors.As(err, &failed) || failed.Code != control.CodeUnavailable {
		t.Errorf("the service ended: %v", err)
	}
}
