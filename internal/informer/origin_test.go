package informer

import (
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// knowing makes the feeds begin with what the API server has now, as it is known from the stream, and with a version to
// resume from, or a reason why there is none.
func (a *api) knowing(version int, reason string) func(*Options) {
	a.mu.Lock()
	defer a.mu.Unlock()
	origins := map[string]Origin{}
	for _, o := range a.objects {
		origin := origins[o.resource]
		origin.Objects = append(origin.Objects, Known{
			Namespace: o.namespace, Name: o.name, UID: types.UID(o.uid), RV: strconv.Itoa(o.version),
		})
		origin.Reason = reason
		if reason == "" {
			origin.Version = strconv.Itoa(version)
		} else {
			origin.Since = strconv.Itoa(version)
		}
		origins[o.resource] = origin
	}
	return func(o *Options) { o.Feeds.(*sunk).origin = origins }
}

// followKnowing follows config maps from what the stream is said to hold.
func (a *api) followKnowing(options ...func(*Options)) *managed {
	return a.manage("configmaps", options...)
}

func TestResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		api.put("default", "a", "0")
		api.put("default", "b", "0")
		c := api.put("default", "c", "0")
		known := api.knowing(c, "")
		// While nobody follows.
		gone := api.remove("default", "b")
		twice := []int{api.put("default", "c", "1"), api.put("default", "c", "2")}
		born := api.put("default", "d", "0")

		f := api.followKnowing(known)
		text := strconv.Itoa
		expect(t, "changes", f.next(),
			"deleted configmaps/default/b "+text(gone)+" watch",
			"modified configmaps/default/c "+text(twice[0])+" watch",
			"modified configmaps/default/c "+text(twice[1])+" watch",
			"added configmaps/default/d "+text(born)+" watch")
		expect(t, "marks", f.marked(), text(c))
		expect(t, "versions that move the position", f.sunk.moved, text(gone), text(twice[0]), text(twice[1]), text(born))
		if lists := api.seen("list"); len(lists) != 1 || lists[0].query.Get("limit") != "1" {
			t.Errorf("%d lists, want only a look at the version: the watch resumes", len(lists))
		}
		if r := f.m.Overview().Resources[0]; r.Objects != 3 || !r.Synced {
			t.Errorf("status %+v, want 3 objects, synced", r)
		}
		// Bookmarks tell what is known of an idle resource.
		other := api.put("default", "s", "0", "secrets")
		settle(time.Minute)
		expect(t, "marks", f.marked(), text(other))
	})
}

func TestResumeWithNothingMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		a := api.put("default", "a", "0")
		f := api.followKnowing(api.knowing(a, ""))
		expect(t, "changes", f.next())
		expect(t, "marks", f.marked(), strconv.Itoa(a))
	})
}

// The server has forgotten the version: the list that follows is compared with what the stream holds.
func TestResumeTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		api.put("default", "deleted", "0")
		api.put("default", "recreated", "0")
		api.put("default", "unchanged", "0")
		changed := api.put("default", "changed", "0")
		known := api.knowing(changed, "")
		api.remove("default", "deleted")
		api.remove("default", "recreated")
		again := api.put("default", "recreated", "1")
		now := api.put("default", "changed", "1")
		born := api.put("default", "new", "1")
		api.compact()

		f := api.followKnowing(known)
		if r := f.m.Overview().Resources[0]; r.Synced {
			t.Errorf("status %+v: synced before the list", r)
		}
		settle(10 * time.Second)
		text := strconv.Itoa
		gap := func(rv int) string { return " relist gap " + text(changed) + "-" + text(rv) }
		expectSet(t, "changes", f.next(), "deleted configmaps/default/deleted 101 missing gap 101-"+text(born+1),
			"modified configmaps/default/changed "+text(now)+gap(now),
			"modified configmaps/default/recreated "+text(again)+gap(again),
			"added configmaps/default/new "+text(born)+gap(born))
		expect(t, "marks", f.marked(), text(born+1)+" "+text(changed)+"-"+text(born+1))
		if len(f.sunk.moved) > 0 {
			t.Errorf("listed changes move the position to %v", f.sunk.moved)
		}
		expect(t, "relists", f.counts.reasons(), "expired")
	})
}

func expectSet(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	seen := map[string]int{}
	for _, line := range got {
		seen[line]++
	}
	for _, line := range want {
		seen[line]--
	}
	for line, n := range seen {
		if n != 0 {
			t.Errorf("%s: %+d of %q", what, n, line)
		}
	}
}

// Without a version to rely on, the first list is compared.
func TestCompareAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		api.put("default", "deleted", "0")
		last := api.put("default", "unchanged", "0")
		known := api.knowing(last, "scope")
		entered := func(o *Options) {
			origin := o.Feeds.(*sunk).origin["configmaps"]
			origin.Entered = func(namespace string) bool { return namespace == "other" }
			o.Feeds.(*sunk).origin["configmaps"] = origin
		}
		api.remove("default", "deleted")
		born := api.put("default", "new", "0")
		moved := api.put("other", "old", "0")
		f := api.followKnowing(known, entered)
		text := strconv.Itoa
		expectSet(t, "changes", f.next(), "deleted configmaps/default/deleted 101 missing gap 101-"+text(moved),
			"added configmaps/default/new "+text(born)+" relist gap "+text(last)+"-"+text(born),
			"added configmaps/other/old "+text(moved)+" scope gap "+text(last)+"-"+text(moved))
		expect(t, "marks", f.marked(), text(moved)+" "+text(last)+"-"+text(moved))
		expect(t, "relists", f.counts.reasons(), "scope")
	})
}

// A server that is behind the version to resume from was restored from a backup. It would accept the watch, and drop all
// events up to that version.
func TestRewindAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		api.put("default", "a", "0")
		f := api.followKnowing(api.knowing(5000, ""))
		settle(time.Minute)
		expect(t, "rewinds", f.rewound, "configmaps 5000 101")
		if n := len(api.seen("watch")); n > 0 {
			t.Errorf("%d watches of a server that is behind", n)
		}
	})
}

func TestVersionCannotBeCheckedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		a := api.put("default", "a", "0")
		api.intercept = failing("configmaps", 503, "ServiceUnavailable", "list")
		f := api.followKnowing(api.knowing(a, ""))
		settle(time.Minute)
		expect(t, "states", f.states(), "configmaps v1 failing list")
		api.heal()
		settle(time.Minute)
		expect(t, "states", f.states(), "configmaps v1 watching")
		expect(t, "changes", f.next())
	})
}

// A silent watch is looked into: whether the server is behind, for one.
func TestRewindUnderARunningWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		api.put("default", "a", "0")
		f := api.follow("", nil)
		var rewound []string
		f.in.lw.rewound = func(known, served string) bool {
			rewound = append(rewound, known+" "+served)
			return true
		}
		settle(2 * time.Minute) // it has sent bookmarks
		api.configure(func() {
			api.mute, api.version = true, 20
			api.cutoff++
		})
		settle(4 * time.Minute)
		if len(rewound) == 0 || rewound[0] != "101 20" {
			t.Errorf("rewinds %v, want 101 20", rewound)
		}
	})
}

// A connection that leads nowhere is noticed by the missing bookmarks, and the watch goes on from the last version.
func TestSilentWatchIsOpenedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		api.put("default", "a", "0")
		f := api.follow("", nil)
		settle(2 * time.Minute)
		f.next()
		silent := true
		api.configure(func() {
			api.cutoff++
			api.intercept = func(w http.ResponseWriter, r *request) bool {
				if r.verb == "watch" && silent {
					silent = false
					_ = http.NewResponseController(w).Flush()
					<-r.Context().Done()
					return true
				}
				return false
			}
		})
		settle(time.Second)
		rv := api.put("default", "a", "1")
		settle(2 * time.Minute)
		expect(t, "changes", f.next())
		settle(2 * time.Minute)
		expect(t, "changes", f.next(), "modified configmaps/default/a "+strconv.Itoa(rv)+" watch")
		if n := len(f.counts.reasons()); n > 0 {
			t.Errorf("%d relists, want none", n)
		}
		if lines := f.log.lines("neither event nor bookmark"); len(lines) != 1 {
			t.Errorf("logged %q, want one line", lines)
		}
	})
}

// What comes just when a watch is given up must be handed on, or be asked for again.
func TestEventWhileAWatchIsDoubted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		api.put("default", "a", "0")
		f := api.follow("", nil)
		settle(2 * time.Minute)
		f.next()
		asked, answer := make(chan struct{}), make(chan struct{})
		once := sync.OnceFunc(func() { close(asked) })
		api.configure(func() {
			api.mute = true
			api.intercept = func(_ http.ResponseWriter, r *request) bool {
				if r.verb == "list" {
					once()
					<-answer
				}
				return false
			}
		})
		<-asked
		var want []string
		for i := range 200 { // more than are buffered
			want = append(want, fmt.Sprintf("modified configmaps/default/a %d watch", api.put("default", "a", strconv.Itoa(i))))
		}
		close(answer)
		settle(time.Minute)
		api.heal()
		settle(time.Minute)
		expect(t, "changes", f.next(), want...)
	})
}

// Versions of an API that do not rise are no restore of the cluster.
func TestVersionsThatDoNotRise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		api.put("default", "a", "0")
		behindOnce := true
		api.intercept = func(w http.ResponseWriter, r *request) bool {
			if r.verb != "list" || r.resource != "configmaps" || !behindOnce {
				return false
			}
			behindOnce = false
			_, _ = w.Write([]byte(`{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}`))
			return true
		}
		f := api.followKnowing(api.knowing(50, ""))
		settle(time.Minute)
		expect(t, "rewinds", f.rewound)
		expect(t, "states", f.states(), "configmaps v1 watching")
		if n := len(api.seen("list")); n != 3 {
			t.Errorf("%d lists, want a look at its version, one at another resource's, and then it compared", n)
		}
	})
}

// Servers that have no bookmarks are silent when nothing happens.
func TestSilenceOfAServerWithoutBookmarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		api.mute = true
		api.put("default", "a", "0")
		f := api.follow("", nil)
		before := len(api.seen("watch"))
		settle(time.Hour)
		if n := len(api.seen("watch")) - before; n > 0 || f.in.status().State != StateWatching {
			t.Errorf("%d watches more, state %s", n, f.in.status().State)
		}
	})
}

// What the configuration no longer selects was not deleted, unless it was.
func TestObjectsThatLeftTheSelection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		api.put("in", "stays", "0")
		lives := api.put("out", "lives", "0")
		gone := api.put("out", "gone", "0")
		last := api.put("out", "recreated", "0")
		known := api.knowing(last, "scope")
		api.remove("out", "gone")
		api.remove("out", "recreated")
		again := api.put("out", "recreated", "1")
		f := api.followKnowing(known, inNamespaces("in"))
		settle(time.Second)
		text := strconv.Itoa
		expectSet(t, "changes", f.next(),
			"left configmaps/out/lives "+text(lives)+" scope",
			"deleted configmaps/out/gone "+text(gone)+" missing gap "+text(gone)+"-"+text(again),
			"deleted configmaps/out/recreated "+text(last)+" missing gap "+text(last)+"-"+text(again))
	})
}

// The stream has objects of a resource that the API server does not have any more.
func TestRemovedResource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		starting := true
		api.intercept = func(w http.ResponseWriter, r *request) bool {
			if r.URL.Path != "/readyz" {
				return false
			}
			if starting {
				w.WriteHeader(http.StatusInternalServerError)
			}
			return true
		}
		known := func(o *Options) {
			objects := []Known{{Namespace: "default", Name: "w", UID: "u", RV: "7"}}
			o.Feeds.(*sunk).origin = map[string]Origin{
				"widgets.example.com": {Objects: objects},                 // selected, and gone
				"gadgets.example.com": {Objects: objects},                 // not selected any more
				"metrics.broken.io":   {Objects: objects},                 // of a group that cannot be discovered
				"configmaps":          {Objects: objects, Version: "100"}, // there
			}
		}
		api.discovery.groups = append(standardGroups(), apiGroup{"broken.io", []apiVersion{{"v1", nil}}})
		api.discovery.stale = []string{"broken.io/v1"}
		f := api.manage("configmaps,widgets.example.com,metrics.broken.io", known)
		settle(5 * time.Minute)
		expect(t, "changes while the server starts", f.next())
		api.configure(func() { starting = false })
		settle(time.Minute)
		expect(t, "changes", f.next(), "deleted widgets.example.com/default/w 7 kind-removed gap 7-100")
		settle(time.Hour)
		expect(t, "changes told already", f.next())
		// It comes back, and goes again.
		api.configure(func() { api.discovery.groups = append(api.discovery.groups, widgets("v1")) })
		settle(time.Minute)
		expect(t, "changes", f.next(), "deleted widgets.example.com/default/w 7 missing gap 7-100")
	})
}
