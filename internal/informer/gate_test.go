package informer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/deltabridge/deltabridge/internal/change"
)

// held is a feed whose changes are done only when the test says so.
type held struct {
	*sunk
	mu   sync.Mutex
	open bool
	wait []func()
}

func (h *held) Take(c *change.Change, moves bool) {
	h.sunk.Take(c, moves)
	h.mu.Lock()
	defer h.mu.Unlock()
	if c.Done == nil {
		return
	}
	if h.open {
		c.Done()
		return
	}
	h.wait = append(h.wait, c.Done)
}

func (h *held) Open(ctx context.Context, gr schema.GroupResource, n int) (Origin, []Feed, error) {
	origin, feeds, err := h.sunk.Open(ctx, gr, n)
	for i := range feeds {
		feeds[i] = h
	}
	return origin, feeds, err
}

// release ends the outage: everything that waits is done, and what comes is at once.
func (h *held) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open = true
	for _, done := range h.wait {
		done()
	}
	h.wait = nil
}

func (h *held) waiting() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.wait)
}

// bounded makes the manager hold back what a feed does not finish, beyond room for n small objects.
func bounded(h *held, n int64) func(*Options) {
	return func(o *Options) {
		h.sunk = o.Feeds.(*sunk)
		o.Feeds, o.BufferBytes = h, n*(changeOverhead+200)
	}
}

// While nothing is acknowledged no more is in memory than the credit says; the watch is closed, and nothing is asked of
// the API server. Afterwards every version arrives.
func TestWatchIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		api.put("default", "a", "0")
		h := &held{open: true}
		f := api.manage("configmaps", bounded(h, 10))
		h.sunk.next()
		h.mu.Lock()
		h.open = false
		h.mu.Unlock()
		var want []string
		for i := range 100 {
			want = append(want, fmt.Sprintf("modified configmaps/default/a %d watch", api.put("default", "a", strconv.Itoa(i))))
		}
		settle(holdPatience / 2)
		if n := h.waiting(); n < 9 || n > 11 {
			t.Errorf("%d changes in memory, want those that fit", n)
		}
		if r := f.m.Overview().Resources[0]; !r.Held || r.State != StateWatching {
			t.Errorf("status %+v, want it held", r)
		}
		settle(holdPatience)
		asked := len(api.seen())
		settle(10 * time.Minute)
		for _, r := range api.seen()[asked:] {
			if r.resource != "" {
				t.Errorf("asked for %s while held", r.URL)
			}
		}
		r := f.m.Overview().Resources[0]
		if used := f.m.gate.Used(); !r.Held || !r.Settled || r.Verb != "" || used > f.m.gate.limit {
			t.Errorf("status %+v with %d of %d bytes, want it held and in no trouble", r, used, f.m.gate.limit)
		}
		h.release()
		settle(10 * time.Second)
		expect(t, "changes", h.sunk.next(), want...)
		expect(t, "relists", f.counts.reasons())
		if r := f.m.Overview().Resources[0]; r.Held || f.m.gate.Used() != 0 {
			t.Errorf("status %+v, %d bytes in use; want nothing held", r, f.m.gate.Used())
		}
	})
}

// What the server has forgotten in an outage arrives as the net difference, marked.
func TestHeldForTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		api.put("default", "a", "0")
		h := &held{open: true}
		f := api.manage("configmaps", bounded(h, 3))
		h.sunk.next()
		h.mu.Lock()
		h.open = false
		h.mu.Unlock()
		last := 0
		for i := range 20 {
			last = api.put("default", "a", strconv.Itoa(i))
		}
		settle(time.Minute)
		position := f.m.Overview().Resources[0].Position
		taken := h.sunk.next()
		api.compact()
		h.release()
		settle(time.Minute)
		expect(t, "changes", h.sunk.next(), fmt.Sprintf("modified configmaps/default/a %d relist gap %s-%d", last, position, last))
		expect(t, "relists", f.counts.reasons(), "expired")
		if len(taken) != 3 || f.m.gate.Used() != 0 {
			t.Errorf("%d taken, %d bytes in use", len(taken), f.m.gate.Used())
		}
	})
}

// A list waits, too, page by page, and its objects are handed on once each, also when the server has forgotten its pages
// meanwhile.
func TestListIsHeld(t *testing.T) {
	for _, forgotten := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			api := newAPI(t)
			api.pageSize = 5
			var want []string
			for i := range 40 {
				want = append(want, fmt.Sprintf("added configmaps/default/o%d %d relist", i, api.put("default", fmt.Sprintf("o%d", i), "0")))
			}
			h := &held{}
			f := api.manage("configmaps", bounded(h, 10))
			settle(time.Minute)
			if n, pages := h.waiting(), len(api.seen("list")); n < 9 || n > 11 || pages > 3 {
				t.Errorf("%d changes in memory, %d pages read", n, pages)
			}
			if r := f.m.Overview().Resources[0]; !r.Held || r.Synced {
				t.Errorf("status %+v, want it held", r)
			}
			if forgotten {
				api.configure(func() {
					api.intercept = once(func(w http.ResponseWriter, r *request) bool {
						return r.query.Get("continue") != "" && failing("", 410, "Expired", "list")(w, r)
					})
				})
			}
			h.release()
			settle(time.Minute)
			got := map[string]int{}
			for _, line := range h.sunk.next() {
				got[line]++
			}
			for _, line := range want {
				if n := got[line]; n == 0 || n > 1 && !forgotten {
					t.Errorf("%s: %d times", line, n)
				}
			}
			if r := f.m.Overview().Resources[0]; r.Objects != 40 || !r.Synced || r.Held || f.m.gate.Used() != 0 {
				t.Errorf("status %+v, %d bytes in use", r, f.m.gate.Used())
			}
		})
	}
}

// An informer that is stopped gives back all that it had, and a list that is held does not outlive it.
func TestStopWhileHeld(t *testing.T) {
	for _, list := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			api := newAPI(t)
			h := &held{}
			if list {
				for i := range 20 {
					api.put("default", fmt.Sprintf("o%d", i), "0")
				}
			}
			f := api.manage("configmaps", bounded(h, 3))
			for i := range 20 {
				api.put("default", "a", strconv.Itoa(i))
			}
			settle(time.Minute)
			f.stop()
			if n := int64(h.waiting()); f.m.gate.Used() > n*f.m.gate.cost(200) {
				t.Errorf("%d bytes in use for %d changes", f.m.gate.Used(), n)
			}
			h.release()
			if f.m.gate.Used() != 0 {
				t.Errorf("%d bytes in use of nothing", f.m.gate.Used())
			}
		})
	}
}

// One object larger than all the credit goes alone.
func TestObjectLargerThanTheCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		h := &held{open: true}
		f := api.manage("configmaps", bounded(h, 1), func(o *Options) { o.BufferBytes = 100 })
		a, b := api.put("default", "a", "0"), api.put("default", "b", "0")
		synctest.Wait()
		expect(t, "changes", h.sunk.next(), fmt.Sprintf("added configmaps/default/a %d watch", a), fmt.Sprintf("added configmaps/default/b %d watch", b))
		if f.m.gate.Used() != 0 {
			t.Errorf("%d bytes in use", f.m.gate.Used())
		}
	})
}

// Events that client-go swallows give their credit back when a later one arrives.
func TestIntake(t *testing.T) {
	gate := NewGate(100)
	take := func(n int64) int64 {
		if !gate.tryTake(n) {
			t.Fatalf("no credit for %d with %d taken", n, gate.Used())
		}
		return n
	}
	in := newIntake(gate)
	first, second, third := in.enter(take(10)), in.enter(take(20)), in.enter(take(30))
	if got := in.arrive(second); got != 20 || gate.Used() != 50 {
		t.Errorf("the second arrives with %d, %d taken; want 20 and 50: the first is lost", got, gate.Used())
	}
	if got := in.arrive(first); got != 0 {
		t.Errorf("the first arrives with %d after the second", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := in.drained(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("drained with one under way: %v", err)
	}
	in.arrive(third)
	if err := in.drained(t.Context()); err != nil {
		t.Error(err)
	}
	in.enter(take(40))
	in.close()
	if gate.Used() != 50 || in.enter(take(50)) != 0 || gate.Used() != 50 {
		t.Errorf("%d taken after the end, want what has arrived", gate.Used())
	}
}
