package informer

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// abort breaks the connection in place of an answer.
func abort(http.ResponseWriter, *request) bool { panic(http.ErrAbortHandler) }

// once lets an intercept answer one request.
func once(f func(http.ResponseWriter, *request) bool) func(http.ResponseWriter, *request) bool {
	var done atomic.Bool
	return func(w http.ResponseWriter, r *request) bool { return !done.Load() && f(w, r) && !done.Swap(true) }
}

// onlyFor restricts an intercept to some verbs.
func onlyFor(f func(http.ResponseWriter, *request) bool, verbs ...string) func(http.ResponseWriter, *request) bool {
	return func(w http.ResponseWriter, r *request) bool { return slices.Contains(verbs, r.verb) && f(w, r) }
}

// Trouble when a watch is opened leaves its position valid: it is opened again from there, and nothing is listed.
func TestWatchCannotBeOpened(t *testing.T) {
	answer := func(code int, body string) func(http.ResponseWriter, *request) bool {
		return onlyFor(func(w http.ResponseWriter, _ *request) bool {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(code)
			_, _ = w.Write([]byte(body))
			return true
		}, "watch")
	}
	tests := []struct {
		name   string
		script func(*api)
		state  State
		warns  int // log lines that name the resource
	}{
		{"429", func(a *api) { a.intercept = failing("", 429, "TooManyRequests", "watch") }, StateFailing, 1},
		{"429 with Retry-After", func(a *api) {
			a.intercept = onlyFor(func(w http.ResponseWriter, r *request) bool {
				w.Header().Set("Retry-After", "1")
				return failing("", 429, "TooManyRequests", "watch")(w, r)
			}, "watch")
		}, StateFailing, 1},
		{"500", func(a *api) { a.intercept = failing("", 500, "InternalError", "watch") }, StateFailing, 1},
		{"502 of a proxy", func(a *api) { a.intercept = answer(502, "<html>bad gateway</html>") }, StateFailing, 1},
		{"503", func(a *api) { a.intercept = failing("", 503, "ServiceUnavailable", "watch") }, StateFailing, 1},
		{"503 of a proxy", func(a *api) { a.intercept = answer(503, "no backend") }, StateFailing, 1},
		{"504", func(a *api) { a.intercept = failing("", 504, "Timeout", "watch") }, StateFailing, 1},
		{"401", func(a *api) { a.intercept = failing("", 401, "Unauthorized", "watch") }, StateUnauthorized, 1},
		{"403", func(a *api) { a.intercept = failing("", 403, "Forbidden", "watch") }, StateForbidden, 1},
		{"404", func(a *api) { a.intercept = failing("", 404, "NotFound", "watch") }, StateAbsent, 1},
		{"refused", func(a *api) { a.network.refuse() }, StateFailing, 0},
		{"reset", func(a *api) { a.intercept = onlyFor(abort, "watch") }, StateFailing, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newAPI(t)
				api.put("default", "a", "1")
				api.put("default", "b", "1") // 102
				f := api.follow("", nil)
				settle(time.Minute)
				f.next()
				before := len(api.seen())
				api.configure(func() { test.script(api) })
				api.endWatches()
				settle(30 * time.Second)
				status := f.in.status()
				if status.State != test.state || status.Verb != "watch" || status.Message == "" || !status.Settled {
					t.Errorf("status %+v, want state %s of the watch, and why", status, test.state)
				}
				if n := len(api.seen()) - before; n > 30 {
					t.Errorf("%d requests in 30 seconds", n)
				}
				api.put("default", "a", "2")
				api.put("default", "a", "3")
				api.remove("default", "b")
				api.heal()
				settle(90 * time.Second)
				expect(t, "changes", f.next(), "modified configmaps/default/a 103 watch",
					"modified configmaps/default/a 104 watch", "deleted configmaps/default/b 105 watch")
				for _, r := range api.seen()[before:] {
					if r.verb != "watch" || r.version != "102" {
						t.Errorf("%s from %q, want only watches from 102", r.verb, r.version)
					}
				}
				if s := f.in.status(); s.State != StateWatching || s.Verb != "" {
					t.Errorf("status after healing %+v", s)
				}
				if reasons := f.counts.reasons(); len(reasons) > 0 {
					t.Errorf("relists for %v", reasons)
				}
				if warns := f.log.lines("level=WARN", "resource=configmaps", "verb=watch"); len(warns) != test.warns {
					t.Errorf("logged %q, want %d lines", warns, test.warns)
				}
				if again := f.log.lines("level=INFO", "followed again"); len(again) != test.warns {
					t.Errorf("logged %q, want %d lines", again, test.warns)
				}
			})
		})
	}
}

// A list that fails is tried again for ever, has a named reason, and heals.
func TestListFails(t *testing.T) {
	lists := []string{"list"}
	body := func(text string) func(*api) {
		return func(a *api) {
			a.intercept = onlyFor(func(w http.ResponseWriter, r *request) bool {
				_, _ = w.Write([]byte(text))
				return true
			}, "list")
		}
	}
	tests := []struct {
		name    string
		script  func(*api)
		state   State
		message string
		warns   int
	}{
		{"401", func(a *api) { a.intercept = failing("", 401, "Unauthorized", lists...) }, StateUnauthorized, "scripted Unauthorized", 1},
		{"403", func(a *api) { a.intercept = failing("", 403, "Forbidden", lists...) }, StateForbidden, "list of configmaps: scripted Forbidden", 1},
		{"404", func(a *api) { a.intercept = failing("", 404, "NotFound", lists...) }, StateAbsent, "NotFound", 1},
		{"405", func(a *api) { a.intercept = failing("", 405, "MethodNotAllowed", lists...) }, StateAbsent, "MethodNotAllowed", 1},
		{"410 for ever", func(a *api) { a.intercept = failing("", 410, "Expired", lists...) }, StateFailing, "Expired", 1},
		{"429", func(a *api) { a.intercept = failing("", 429, "TooManyRequests", lists...) }, StateFailing, "TooManyRequests", 1},
		{"500", func(a *api) { a.intercept = failing("", 500, "InternalError", lists...) }, StateFailing, "InternalError", 1},
		{"503", func(a *api) { a.intercept = failing("", 503, "ServiceUnavailable", lists...) }, StateFailing, "ServiceUnavailable", 1},
		{"refused", func(a *api) { a.network.refuse() }, StateFailing, "connection refused", 0},
		{"reset", func(a *api) { a.intercept = onlyFor(abort, lists...) }, StateFailing, "EOF", 0},
		{"a login page", body("<html>Please log in</html>"), StateFailing, "list body", 1},
		{"nothing", body(""), StateFailing, "list body", 1},
		{"an object", body(`{"kind":"ConfigMap","metadata":{"name":"x","resourceVersion":"7"}}`), StateFailing, "is not a list", 1},
		{"a Status", body(`{"kind":"Status","status":"Success","metadata":{}}`), StateFailing, `of kind "Status", is not a list`, 1},
		{"an item without a name", body(`{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{}}]}`), StateFailing, "item 0 has no name", 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newAPI(t)
				api.put("default", "a", "1")
				test.script(api)
				f := api.follow("", nil)
				settle(10 * time.Minute)
				status := f.in.status()
				if status.State != test.state || status.Verb != "list" || status.Synced || !status.Settled || !strings.Contains(status.Message, test.message) {
					t.Errorf("status %+v, want state %s of the list and a message with %q", status, test.state, test.message)
				}
				// The client itself repeats a request ten times, a second apart, when a connection breaks.
				if n := len(api.seen()); n > 400 {
					t.Errorf("%d requests in ten minutes", n)
				}
				api.heal()
				settle(90 * time.Second)
				expect(t, "changes", f.next(), "added configmaps/default/a 101 relist")
				if s := f.in.status(); s.State != StateWatching || !s.Synced || s.Verb != "" {
					t.Errorf("status after healing %+v", s)
				}
				if reasons := f.counts.reasons(); len(reasons) > 0 {
					t.Errorf("relists for %v, want none: it was the first list", reasons)
				}
				if warns := f.log.lines("level=WARN", "resource=configmaps"); len(warns) != test.warns {
					t.Errorf("logged %q, want %d lines", warns, test.warns)
				}
			})
		})
	}
}

// When the server has forgotten what happened since, a list finds the net difference, and every change says that
// versions may be missing.
func TestExpired(t *testing.T) {
	ways := map[string]func(*api){
		"410 on opening": func(*api) {},
		"410 as a frame": func(a *api) {
			a.compacted = 0 // else opening the watch again would end in a list, too
			a.intercept = once(answering("watch", string(errorFrame(410, "Expired", "too old resource version"))))
		},
		"410 Gone as a frame": func(a *api) {
			a.compacted = 0 // else opening the watch again would end in a list, too
			a.intercept = once(answering("watch", string(errorFrame(410, "Gone", "too old resource version"))))
		},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newAPI(t)
				for _, name := range []string{"same", "changed", "deleted", "recreated"} {
					api.put("default", name, "1")
				}
				f := api.follow("", nil)
				settle(time.Minute)
				f.next()
				api.cut()
				api.put("default", "changed", "2")
				api.put("default", "changed", "3")
				api.remove("default", "deleted")
				api.remove("default", "recreated")
				api.put("default", "recreated", "2")
				api.put("default", "new", "1")
				api.compact() // 111
				api.heal()
				api.configure(func() { way(api) })
				before := len(api.seen())
				settle(time.Minute)
				got := f.next()
				slices.Sort(got)
				expect(t, "changes", got,
					"added configmaps/default/new 110 relist gap 104-110",
					"deleted configmaps/default/deleted 103 missing gap 103-111",
					"modified configmaps/default/changed 106 relist gap 104-106",
					"modified configmaps/default/recreated 109 relist gap 104-109")
				expect(t, "relists", f.counts.reasons(), "expired")
				var verbs []string
				for _, r := range api.seen()[before:] {
					if len(verbs) == 0 || verbs[len(verbs)-1] != r.verb {
						verbs = append(verbs, r.verb)
					}
				}
				if verbs[0] != "watch" || !slices.Contains(verbs, "list") {
					t.Errorf("requests %v, want a watch and then a list", verbs)
				}
				if n := f.in.status().Objects; n != 4 {
					t.Errorf("%d objects, want 4", n)
				}
				api.heal()
				api.put("default", "same", "2")
				settle(time.Minute)
				expect(t, "later changes", f.next(), "modified configmaps/default/same 112 watch")
			})
		})
	}
}

// One frame that is not valid costs nothing but a new watch from the last version.
func TestInvalidFrame(t *testing.T) {
	for name, garbage := range map[string]string{
		"not JSON":      "garbage\n",
		"half a frame":  `{"type":"MODIFIED","object":{"kind":"Conf` + "\n",
		"unknown type":  `{"type":"CHANGED","object":{"metadata":{"name":"a","resourceVersion":"9"}}}` + "\n",
		"no version":    `{"type":"MODIFIED","object":{"metadata":{"name":"a"}}}` + "\n",
		"no name":       `{"type":"MODIFIED","object":{"metadata":{"resourceVersion":"103"}}}` + "\n",
		"another error": string(errorFrame(500, "InternalError", "unable to decode watch event")),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newAPI(t)
				api.put("default", "a", "1")
				f := api.follow("", nil)
				settle(time.Minute)
				f.next()
				spoilt := false
				api.configure(func() {
					api.frame = func(_ *request, e event, frame []byte) []byte {
						if e.version == 104 && !spoilt {
							spoilt = true
							return []byte(garbage)
						}
						return frame
					}
				})
				before := len(api.seen())
				for i := range 5 {
					api.put("default", "a", strconv.Itoa(i))
				}
				settle(5 * time.Second)
				expect(t, "changes", f.next(),
					"modified configmaps/default/a 102 watch", "modified configmaps/default/a 103 watch", "modified configmaps/default/a 104 watch",
					"modified configmaps/default/a 105 watch", "modified configmaps/default/a 106 watch")
				expect(t, "requests", since(api.seen(), before), "watch 103")
				want := 1
				if name == "another error" {
					want = 0
				}
				if n := f.counts.bad(); n != want {
					t.Errorf("%d bad frames counted, want %d", n, want)
				}
				if reasons := f.counts.reasons(); len(reasons) > 0 {
					t.Errorf("relists for %v", reasons)
				}
				if lines := f.log.lines(); len(lines) != 1 || !strings.Contains(lines[0], "watching again from the last version") {
					t.Errorf("logged %q, want one line", lines)
				}
				if s := f.in.status(); s.State != StateWatching {
					t.Errorf("state %s", s.State)
				}
			})
		})
	}
}

// A server that fails every watch at once must not be asked all the time, nor fill the log, and what changes must
// arrive all the same, by lists.
func TestEveryWatchFails(t *testing.T) {
	for name, test := range map[string]struct {
		answer  string
		reason  string
		message string
	}{
		"not JSON":     {"garbage\n", "invalid-frame", "not valid"},
		"closed":       {"", "disconnected", "failed at once"},
		"error frames": {string(errorFrame(500, "InternalError", "unable to decode watch event")), "failed", "unable to decode"},
		"overloaded":   {string(errorFrame(429, "TooManyRequests", "slow down")), "failed", "slow down"},
		"old news and closed": {
			`{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"101"}}}` + "\n", "disconnected", "failed at once",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newAPI(t)
				api.put("default", "a", "1")
				f := api.follow("", nil)
				settle(time.Minute)
				f.next()
				before := len(api.seen())
				api.configure(func() { api.intercept = answering("watch", test.answer) })
				api.endWatches()
				settle(time.Minute)
				s := f.in.status()
				if s.State != StateFailing || s.Verb != "watch" || !strings.Contains(s.Message, test.message) {
					t.Errorf("status %+v, want a failing watch because of %q", s, test.message)
				}
				if name != "old news and closed" {
					api.put("default", "a", "2")
				}
				settle(10 * time.Minute)
				if n := len(api.seen("watch")); n < 5 || n > 120 {
					t.Errorf("%d watches in eleven minutes", n)
				}
				if name != "old news and closed" {
					expect(t, "changes", f.next(), "modified configmaps/default/a 102 relist gap 101-102")
				}
				reasons := slices.Compact(f.counts.reasons())
				expect(t, "relists", reasons, test.reason)
				lists := 0
				for _, r := range api.seen()[before:] {
					if r.verb == "list" {
						lists++
					}
				}
				if lists < 1 || lists > 20 {
					t.Errorf("%d lists in eleven minutes", lists)
				}
				if warns := f.log.lines("level=WARN"); len(warns) != 1 {
					t.Errorf("logged %q, want one line", warns)
				}
				api.heal()
				settle(2 * time.Minute)
				if s := f.in.status(); s.State != StateWatching || s.Verb != "" {
					t.Errorf("status after healing, with nothing to tell, %+v", s)
				}
				f.next()
				rv := api.put("default", "a", "3")
				synctest.Wait()
				expect(t, "changes after healing", f.next(), fmt.Sprintf("modified configmaps/default/a %d watch", rv))
			})
		})
	}
}

// The end of one short watch is no trouble: a server that restarts does that.
func TestOneShortWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		api.put("default", "a", "1")
		f := api.follow("", nil)
		f.next()
		api.endWatches()
		synctest.Wait()
		api.put("default", "a", "2")
		settle(2 * time.Second)
		expect(t, "changes", f.next(), "modified configmaps/default/a 102 watch")
		expect(t, "requests", since(api.seen(), 0), "list", "watch 101", "watch 101")
		if lines := f.log.lines(); len(lines) > 0 {
			t.Errorf("logged %q", lines)
		}
	})
}

// An outage with nothing changed leaves no trace but the requests.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		api.put("default", "a", "1")
		f := api.follow("", nil)
		settle(time.Minute)
		f.next()
		for range 3 {
			api.cut()
			settle(20 * time.Second)
			api.heal()
			settle(time.Minute)
		}
		expect(t, "changes", f.next())
		api.put("default", "a", "2")
		synctest.Wait()
		expect(t, "changes", f.next(), "modified configmaps/default/a 102 watch")
		if lines := f.log.lines(); len(lines) > 0 {
			t.Errorf("logged %q: the outage of the API server is not a resource's matter", lines)
		}
	})
}

// A server that is behind (another member of a cluster, or after a restore) refuses a list from a version in its
// future. The refusal's cause says so, and a list of any version is the way out.
func TestVersionTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		api.put("default", "a", "1")
		f := api.follow("", nil)
		settle(time.Minute)
		f.next()
		api.configure(func() {
			api.intercept = func(w http.ResponseWriter, r *request) bool {
				if r.version == "" {
					return false
				}
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusGatewayTimeout)
				fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Timeout: Too large resource version: 101, current: 90",
					"reason":"Timeout","details":{"causes":[{"reason":"ResourceVersionTooLarge","message":"Too large resource version"}],"retryAfterSeconds":1},"code":504}`)
				return true
			}
		})
		before := len(api.seen())
		api.endWatches()
		synctest.Wait()
		api.put("default", "a", "2")
		settle(time.Minute)
		if got := since(api.seen(), before); !slices.Contains(got, "list") {
			t.Errorf("requests %v, want a list of any version", got)
		}
		expect(t, "changes", f.next(), "modified configmaps/default/a 102 relist gap 101-102")
	})
}
