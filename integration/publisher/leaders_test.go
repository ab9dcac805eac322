package publisher

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/deltabridge/deltabridge/integration/check"
	"github.com/deltabridge/deltabridge/integration/harness"
	"github.com/deltabridge/deltabridge/integration/naive"
	"github.com/deltabridge/deltabridge/internal/change"
)

var loadTime = flag.Duration("load", 15*time.Second, "how long changes are made while the stream's leaders step down")

// watched is an API server that has no pods, and whose watch tells of the changes that it is given: a control that
// follows the cluster by itself sees what the publisher sees.
type watched struct {
	mu     sync.Mutex
	frames bytes.Buffer
	more   chan struct{}
}

var watchTypes = map[change.Op]string{change.OpAdded: "ADDED", change.OpModified: "MODIFIED", change.OpDeleted: "DELETED"}

func (s *watched) add(c *change.Change) {
	s.mu.Lock()
	fmt.Fprintf(&s.frames, `{"type":%q,"object":%s}`+"\n", watchTypes[c.Op], c.Raw)
	s.mu.Unlock()
	select {
	case s.more <- struct{}{}:
	default:
	}
}

// ServeHTTP answers lists, and the one watch that is opened.
func (s *watched) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	query := r.URL.Query()
	switch {
	case query.Get("watch") == "":
		fmt.Fprint(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`)
		return
	case query.Get("sendInitialEvents") != "":
		w.WriteHeader(http.StatusUnprocessableEntity)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`)
		return
	}
	for {
		s.mu.Lock()
		frames := bytes.Clone(s.frames.Bytes())
		s.frames.Reset()
		s.mu.Unlock()
		if _, err := w.Write(frames); err != nil {
			return
		}
		w.(http.Flusher).Flush()
		select {
		case <-s.more:
		case <-r.Context().Done():
			return
		}
	}
}

// control runs the naive publisher on a watched API server, and on a stream of its own.
func control(t *testing.T, js jetstream.JetStream, s *watched) (stop func()) {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	if _, err := js.CreateStream(t.Context(), naive.StreamConfig("CONTROL", "control", cluster, 3)); err != nil {
		t.Fatal(err)
	}
	p := naive.New(naive.Options{
		Client: dynamic.NewForConfigOrDie(&rest.Config{Host: server.URL, QPS: -1}), JS: js,
		Resources: []schema.GroupVersionResource{{Version: "v1", Resource: "pods"}},
		Stream:    "CONTROL", Prefix: "control", Cluster: cluster,
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := p.Run(ctx, 5*time.Second); err != nil {
			t.Errorf("the control failed: %v", err)
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// TestLeaderStepsDown is case O2: the leader of a replicated stream steps down every 0.7 s under load. Read back from the
// stream, nothing is lost, stored twice, or out of order. The control, on the same changes and in the same trouble, fails
// the same check.
func TestLeaderStepsDown(t *testing.T) {
	const objects = 500
	nodes := harness.StartNATSCluster(t, 3)
	js := nodes.JetStream(t)
	options := streamOptions()
	options.Replicas, options.Storage = 3, jetstream.FileStorage
	r := start(t, setup{urls: []string{nodes.URLs()}, options: options})
	api := &watched{more: make(chan struct{}, 1)}
	stopControl := control(t, js, api)

	ctx, cancel := context.WithTimeout(t.Context(), *loadTime)
	defer cancel()
	var stepDowns atomic.Int64
	var running sync.WaitGroup
	running.Go(func() {
		for {
			for _, s := range []string{stream, "CONTROL"} {
				// There may be no leader at the moment; what counts is how often it worked.
				if nodes.StepDown(s) == nil {
					stepDowns.Add(1)
				}
			}
			select {
			case <-time.After(700 * time.Millisecond):
			case <-ctx.Done():
				return
			}
		}
	})
	w := newWorld(1, 500)
	for ctx.Err() == nil {
		for range 20 {
			c := w.happen(fmt.Sprint("pod-", w.rng.IntN(objects)))
			api.add(c)
			r.Publish(c)
		}
		time.Sleep(20 * time.Millisecond)
	}
	running.Wait()
	r.flush(t)
	t.Logf("%d changes, %d times a leader stepped down; sent again: %v", len(w.all), stepDowns.Load(), r.metrics.counts)
	if len(w.all) < 1000 || stepDowns.Load() < 4 {
		t.Fatal("that is too little to show anything")
	}
	w.require(t, js)
	r.well(t)

	stopControl()
	s, err := check.Read(t.Context(), js, "CONTROL", "control", cluster)
	if err != nil {
		t.Fatal(err)
	}
	report := s.Verify()
	times := map[string]int{}
	for _, m := range s.Objects("") {
		times[m.UID+"/"+m.RV]++
	}
	lost := 0
	for _, c := range w.all {
		if times[string(c.UID)+"/"+c.RV] == 0 {
			lost++
		}
	}
	t.Logf("the control: %d lost, %d inversions, %d duplicates", lost, report.Inversions, report.Duplicates)
	if lost+report.Inversions+report.Duplicates == 0 {
		t.Error("the control broke nothing, so that the publisher's success proves nothing")
	}
}
