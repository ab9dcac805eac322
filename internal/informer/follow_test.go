package informer

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/deltabridge/deltabridge/internal/change"
)

var configMaps = Resource{GVR: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, Kind: "ConfigMap", Namespaced: true}

// sunk is the Feed of all informers, and their Feeds: it remembers.
type sunk struct {
	origin map[string]Origin // by resource
	hook   func()            // called before a change is taken

	mu      sync.Mutex
	all     []*change.Change
	marks   []string // versions, with the gap if there is one
	moved   []string // versions of the changes that move the position
	rewound []string
	busy    bool     // no repetition is taken
	runs    []string // of the repetitions
}

func (s *sunk) Open(_ context.Context, gr schema.GroupResource, n int) (Origin, []Feed, error) {
	return s.origin[gr.String()], slices.Repeat([]Feed{s}, n), nil
}

func (s *sunk) Resources() []schema.GroupResource {
	var out []schema.GroupResource
	for resource, origin := range s.origin {
		if len(origin.Objects) > 0 {
			out = append(out, schema.ParseGroupResource(resource))
		}
	}
	return out
}

func (s *sunk) Rewound(gr schema.GroupResource, published, served string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rewound = append(s.rewound, fmt.Sprintf("%s %s %s", gr, published, served))
}

func (s *sunk) Take(c *change.Change, moves bool) {
	if s.hook != nil {
		s.hook()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, c)
	if moves {
		s.moved = append(s.moved, c.RV)
	}
}

func (s *sunk) Repeat(c *change.Change) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy {
		return false
	}
	s.all = append(s.all, c)
	s.runs = append(s.runs, c.Run)
	return true
}

func (s *sunk) Mark(version string, gap change.Gap) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.marks = append(s.marks, strings.TrimSpace(version+" "+gap.String()))
}

// marked returns the marks since the last call.
func (s *sunk) marked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	marks := s.marks
	s.marks = nil
	return marks
}

// next returns the changes since the last call, one line each.
func (s *sunk) next() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, c := range s.all {
		out = append(out, describeChange(c))
	}
	s.all = nil
	return out
}

func describeChange(c *change.Change) string {
	line := fmt.Sprintf("%s %s %s %s", c.Op, c.Ref, c.RV, c.Reason)
	if !c.Gap.IsZero() {
		line += " gap " + c.Gap.String()
	}
	return line
}

// followed is one informer over the scripted API server.
type followed struct {
	*sunk
	in     *informer
	counts *counts
	log    *logged
	stop   func() time.Duration // ends the informer and returns how long that took
}

func (a *api) follow(namespace string, keep func(string) bool) *followed {
	f := &followed{sunk: &sunk{}, counts: &counts{}, log: &logged{}}
	in, err := newInformer(informerOptions{client: a.client(), metrics: f.counts, log: f.log.logger(), gate: NewGate(math.MaxInt64)}, configMaps, namespace, keep, f.sunk)
	if err != nil {
		a.t.Fatal(err)
	}
	f.in = in
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		in.run(ctx)
	}()
	f.stop = func() time.Duration {
		begin := time.Now()
		cancel()
		<-done
		return time.Since(begin)
	}
	a.t.Cleanup(func() { f.stop() })
	synctest.Wait()
	return f
}

// settle lets virtual time pass, and then everything that can happen happen.
func settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func expect(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s differ (-want +got):\n%s", what, diff)
	}
}

// since returns the requests after the first n, as "verb version".
func since(requests []*request, n int) []string {
	var out []string
	for _, r := range requests[n:] {
		out = append(out, strings.TrimSpace(r.verb+" "+r.version))
	}
	return out
}

func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		api.put("default", "a", "1") // 101
		api.put("default", "b", "1") // 102
		api.put("default", "a", "2") // 103
		f := api.follow("", nil)
		expect(t, "the list's changes", f.next(), "added configmaps/default/a 103 relist", "added configmaps/default/b 102 relist")
		api.put("default", "c", "1")
		api.put("default", "a", "3")
		api.remove("default", "b")
		api.put("default", "b", "again")
		synctest.Wait()
		expect(t, "the watch's changes", f.next(),
			"added configmaps/default/c 104 watch", "modified configmaps/default/a 105 watch",
			"deleted configmaps/default/b 106 watch", "added configmaps/default/b 107 watch")
		expect(t, "requests", since(api.seen(), 0), "list", "watch 103")
		want := Status{State: StateWatching, Synced: true, Settled: true, Objects: 3, Position: "107"}
		if diff := cmp.Diff(want, f.in.status()); diff != "" {
			t.Errorf("status differs (-want +got):\n%s", diff)
		}
		if lines := f.log.lines(); len(lines) > 0 {
			t.Errorf("success is not silent: %q", lines)
		}
	})
}

// The change carries what a message needs: the JSON as it came, kind and all.
func TestChangeCarriesTheObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		api.put("default", "a", "1")
		f := api.follow("", nil)
		api.put("default", "a", "1")
		synctest.Wait()
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.all) != 2 {
			t.Fatalf("%d changes, want one of a list and one of a watch", len(f.all))
		}
		for i, c := range f.all {
			want := `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","uid":"uid-a-101","resourceVersion":"` + strconv.Itoa(101+i) + `","namespace":"default"},"data":{"value":"1"}}`
			if string(c.Raw) != want || c.UID != "uid-a-101" || c.GVK.String() != "/v1, Kind=ConfigMap" || !c.Seen.Equal(time.Now()) {
				t.Errorf("change is %+v with %s, want %s", c, c.Raw, want)
			}
		}
	})
}

func TestFollowPagedList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		api.pageSize = 2
		for i := range 5 {
			api.put("default", "o"+strconv.Itoa(i), "1")
		}
		f := api.follow("", nil)
		expect(t, "the list's changes", f.next(),
			"added configmaps/default/o0 101 relist", "added configmaps/default/o1 102 relist", "added configmaps/default/o2 103 relist",
			"added configmaps/default/o3 104 relist", "added configmaps/default/o4 105 relist")
		api.put("default", "o0", "2")
		synctest.Wait()
		expect(t, "the watch's changes", f.next(), "modified configmaps/default/o0 106 watch")
		expect(t, "requests", since(api.seen(), 0), "list", "list", "list", "watch 105")
		var pages []string
		for _, r := range api.seen("list") {
			pages = append(pages, r.query.Get("continue"))
		}
		expect(t, "continue tokens", pages, "", "2", "4")
	})
}

// A watch that is closed is opened again at the last version: no list, nothing twice, nothing lost.
func TestWatchClosedAgainAndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		api.put("default", "a", "0")
		f := api.follow("", nil)
		f.next()
		settle(time.Minute)
		api.configure(func() { api.closeAfter = 5 })
		before := len(api.seen())
		api.endWatches()
		synctest.Wait()
		want, watches := []string(nil), []string{"watch 101"}
		for i := range 23 {
			rv := api.put("default", "a", strconv.Itoa(i))
			want = append(want, fmt.Sprintf("modified configmaps/default/a %d watch", rv))
			if i%5 == 4 {
				watches = append(watches, "watch "+strconv.Itoa(rv))
			}
		}
		settle(10 * time.Second)
		expect(t, "changes", f.next(), want...)
		expect(t, "requests", since(api.seen(), before), watches...)
		if reasons := f.counts.reasons(); len(reasons) > 0 {
			t.Errorf("relists for %v, want none", reasons)
		}
	})
}

// The server ends watches after some minutes, whether or not something happens.
func TestQuietWatchesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		rv := api.put("default", "a", "0")
		f := api.follow("", nil)
		before := len(api.seen())
		for range 3 {
			settle(5 * time.Minute)
			api.endWatches()
			synctest.Wait()
		}
		expect(t, "requests", since(api.seen(), before), slices.Repeat([]string{"watch " + strconv.Itoa(rv)}, 3)...)
		if lines := f.log.lines(); len(lines) > 0 || f.in.status().State != StateWatching {
			t.Errorf("state %s, log %q, want watching and silence", f.in.status().State, lines)
		}
	})
}

// What the namespace filter leaves out must move the position all the same, or a later watch begins at a version that
// the server has forgotten.
func TestNamespaceFilter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		api.put("keep", "a", "1")
		api.put("drop", "a", "1")
		f := api.follow("", func(ns string) bool { return ns == "keep" })
		expect(t, "the list's changes", f.next(), "added configmaps/keep/a 101 relist")
		for i := range 10 {
			api.put("drop", "a", strconv.Itoa(i))
		}
		synctest.Wait()
		expect(t, "changes", f.next())
		if p := f.in.status().Position; p != "112" {
			t.Errorf("position %s, want 112", p)
		}
		api.compact()
		before := len(api.seen())
		api.configure(func() { api.compacted = 112 })
		api.endWatches()
		synctest.Wait()
		api.put("keep", "a", "2")
		api.remove("drop", "a")
		api.remove("keep", "a")
		synctest.Wait()
		expect(t, "changes", f.next(), "modified configmaps/keep/a 114 watch", "deleted configmaps/keep/a 116 watch")
		expect(t, "requests", since(api.seen(), before), "watch 112")
		if n := f.in.status().Objects; n != 0 {
			t.Errorf("%d objects, want 0", n)
		}
	})
}

func TestNamespacedWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		api.put("one", "a", "1")
		api.put("two", "a", "1")
		f := api.follow("one", nil)
		api.put("two", "a", "2")
		api.put("one", "a", "2")
		synctest.Wait()
		expect(t, "changes", f.next(), "added configmaps/one/a 101 relist", "modified configmaps/one/a 104 watch")
		for _, r := range api.seen() {
			if r.namespace != "one" || r.URL.Path != "/api/v1/namespaces/one/configmaps" {
				t.Errorf("request of %s", r.URL)
			}
		}
	})
}

// Stop must return at once, whatever the informer is waiting for, and leave nothing behind: within the bubble, a
// goroutine that stays fails the test.
func TestStopReturnsAtOnce(t *testing.T) {
	hang := func(verbs ...string) func(api *api) {
		return func(api *api) {
			api.intercept = func(_ http.ResponseWriter, r *request) bool {
				if slices.Contains(verbs, r.verb) {
					<-r.Context().Done()
					return true
				}
				return false
			}
		}
	}
	refused := func(code int, reason string, verbs ...string) func(api *api) {
		return func(api *api) { api.intercept = failing("", code, reason, verbs...) }
	}
	tests := map[string]func(*api){
		"watching":              func(*api) {},
		"list is not answered":  hang("list"),
		"watch is not answered": hang("watch"),
		"connections refused":   func(a *api) { a.network.refuse() },
		"list forbidden":        refused(403, "Forbidden", "list"),
		"watch forbidden":       refused(403, "Forbidden", "watch"),
		"everything overloaded": refused(429, "TooManyRequests", "list", "watch"),
		"overloaded with a Retry-After": func(a *api) {
			a.intercept = func(w http.ResponseWriter, r *request) bool {
				w.Header().Set("Retry-After", "60")
				return failing("", 429, "TooManyRequests", "list", "watch")(w, r)
			}
		},
		"invalid frames": func(a *api) { a.intercept = answering("watch", "busy\n") },
	}
	for name, script := range tests {
		for _, after := range []time.Duration{0, time.Second, time.Minute} {
			t.Run(fmt.Sprintf("%s/%s", name, after), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					api := newAPI(t)
					api.put("default", "a", "1")
					script(api)
					f := api.follow("", nil)
					settle(after)
					if took := f.stop(); took > 0 {
						t.Errorf("stop took %s", took)
					}
				})
			})
		}
	}
	t.Run("outage", func(t *testing.T) {
		for _, after := range []time.Duration{0, time.Second, time.Minute} {
			synctest.Test(t, func(t *testing.T) {
				api := newAPI(t)
				f := api.follow("", nil)
				api.cut()
				settle(after)
				if took := f.stop(); took > 0 {
					t.Errorf("stop %s into an outage took %s", after, took)
				}
			})
		}
	})
}
