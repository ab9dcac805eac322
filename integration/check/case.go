package check

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/client-go/dynamic"
)

// Case is everything that a test's end is checked with.
type Case struct {
	JS jetstream.JetStream
	// Stream, Prefix and Cluster are the contract's defaults where they are empty.
	Stream, Prefix, Cluster string

	// Client and Selection tell what the cluster holds.
	Client    dynamic.Interface
	Selection Selection
	// Recording is compared too where it is not nil.
	Recording *Recording
	// AllowReduced is for objects that are too large for the broker.
	AllowReduced bool
	// Timeout is how long the stream may take to catch up with the cluster, which must be at rest.
	Timeout time.Duration
}

func (c Case) withDefaults() Case {
	set := func(field *string, value string) {
		if *field == "" {
			*field = value
		}
	}
	set(&c.Stream, "KUBE")
	set(&c.Prefix, "kube")
	set(&c.Cluster, "main")
	if c.Timeout == 0 {
		c.Timeout = 90 * time.Second
	}
	return c
}

// Read reads the stream as it is now.
func (c Case) Read(t testing.TB) *Stream {
	t.Helper()
	c = c.withDefaults()
	s, err := Read(t.Context(), c.JS, c.Stream, c.Prefix, c.Cluster)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Run waits until the stream's last messages equal the cluster's state, or for the timeout, and returns the stream and
// all that is wrong with it then.
func (c Case) Run(t testing.TB) (*Stream, *Report) {
	t.Helper()
	c = c.withDefaults()
	ctx, cancel := context.WithTimeout(t.Context(), c.Timeout)
	defer cancel()
	var (
		stream *Stream
		report *Report
		err    error
	)
	for {
		// The last attempt may outlast the timeout: it is what the report is made of.
		stream, report, err = c.Once(t.Context())
		if err == nil && len(report.Only(Missing, Stale, Lost, LostDelete, Incomplete)) == 0 || ctx.Err() != nil {
			break
		}
		select {
		case <-time.After(300 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return stream, report
}

// Once checks the stream as it is now.
func (c Case) Once(ctx context.Context) (*Stream, *Report, error) {
	c = c.withDefaults()
	stream, err := Read(ctx, c.JS, c.Stream, c.Prefix, c.Cluster)
	if err != nil {
		return nil, nil, err
	}
	report := stream.Verify()
	state, err := ReadState(ctx, c.Client, c.Selection)
	if err != nil {
		return nil, nil, err
	}
	report.merge(stream.CompareState(state))
	if c.AllowReduced {
		report.Drop(Reduced)
	}
	if c.Recording != nil {
		caughtUp := c.Recording.CaughtUp(ctx)
		report.merge(stream.CompareRecording(c.Recording))
		if caughtUp != nil {
			report.add(Incomplete, 0, stream.Root, "%v", caughtUp)
		}
	}
	return stream, report, nil
}

// Require is [Case.Run] and [Report.Require].
func (c Case) Require(t testing.TB) *Stream {
	t.Helper()
	stream, report := c.Run(t)
	report.Require(t)
	return stream
}
