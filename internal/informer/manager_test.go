package informer

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// managed is a Manager over the scripted API server.
type managed struct {
	*sunk
	m      *Manager
	counts *counts
	log    *logged
	stop   func() time.Duration
}

func (a *api) manage(patterns string, more ...func(*Options)) *managed {
	f := &managed{sunk: &sunk{}, counts: &counts{}, log: &logged{}}
	options := Options{Config: a.config(), Patterns: patternsOf(patterns), Feeds: f.sunk, Metrics: f.counts, Log: f.log.logger()}
	for _, change := range more {
		change(&options)
	}
	var err error
	if f.m, err = NewManager(options); err != nil {
		a.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.m.Run(ctx)
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

func inNamespaces(names ...string) func(*Options) {
	return func(o *Options) { o.Namespaces = names }
}

// states returns one line for each resource: its name, version, state, and the verb that is in the way.
func (f *managed) states() []string {
	var out []string
	o := f.m.Overview()
	for _, r := range o.Resources {
		line := fmt.Sprintf("%s %s %s", r.Resource, r.Version, r.State)
		if r.Verb != "" {
			line += " " + r.Verb
		}
		out = append(out, line)
	}
	for _, m := range o.Missing {
		out = append(out, "missing "+m)
	}
	for _, u := range o.Unknown {
		out = append(out, "unknown "+u.Pattern)
	}
	return out
}

func TestManagerFollowsWhatIsSelected(t *testing.T) {
	for _, legacy := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			api := newAPI(t)
			api.discovery.legacy = legacy
			api.put("default", "a", "1")
			api.put("", "default", "1", "namespaces")
			api.put("default", "web", "1", "deployments.apps")
			f := api.manage("*,-namespaces")
			got := f.next()
			slices.Sort(got)
			expect(t, "changes", got, "added configmaps/default/a 101 relist", "added deployments.apps/default/web 103 relist")
			expect(t, "resources", f.states(), "configmaps v1 watching", "deployments.apps v1 watching")
			if o := f.m.Overview(); !o.Settled() || !o.Reached || o.Message != "" {
				t.Errorf("overview %+v, want it settled", o)
			}
			before := len(api.seen())
			settle(5 * time.Minute)
			if n := len(api.seen()) - before; !legacy && n > 25 || n == 0 {
				t.Errorf("%d requests in five quiet minutes", n)
			}
			if lines := f.log.lines(); len(lines) > 0 {
				t.Errorf("logged %q, want silence", lines)
			}
		})
	}
}

func TestResourceComesAndGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		f := api.manage("configmaps,widgets.example.com,*.example.com")
		expect(t, "resources", f.states(), "configmaps v1 watching", "missing widgets.example.com", "missing *.example.com")
		if !f.m.Overview().Settled() {
			t.Error("a resource that does not exist keeps the rest from being settled")
		}
		settle(10 * time.Minute)
		if lines := f.log.lines("do not exist yet"); len(lines) != 1 || !strings.Contains(lines[0], "widgets.example.com,*.example.com") {
			t.Errorf("logged %q, want one line", lines)
		}
		// It appears.
		api.put("default", "w", "1", "widgets.example.com")
		api.configure(func() { api.discovery.groups = append(standardGroups(), widgets("v1")) })
		settle(2 * discoveryRetry)
		expect(t, "changes", f.next(), "added widgets.example.com/default/w 101 relist")
		expect(t, "resources", f.states(), "configmaps v1 watching", "widgets.example.com v1 watching")
		// Another version is preferred: the same objects, from the other URL.
		api.configure(func() { api.discovery.groups = append(standardGroups(), widgets("v2", "v1")) })
		before := len(api.seen())
		settle(2 * discoveryPeriod)
		expect(t, "resources", f.states(), "configmaps v1 watching", "widgets.example.com v2 watching")
		f.next()
		rv := api.put("default", "w", "2", "widgets.example.com")
		synctest.Wait()
		expect(t, "changes", f.next(), fmt.Sprintf("modified widgets.example.com/default/w %d watch", rv))
		for _, r := range api.seen()[before:] {
			if r.resource == "configmaps" || r.resource == "widgets.example.com" && !strings.HasPrefix(r.URL.Path, "/apis/example.com/v2/") {
				t.Errorf("request of %s: nothing else may be touched", r.URL.Path)
			}
		}
		// It goes.
		api.configure(func() { api.discovery.groups = standardGroups() })
		settle(2 * discoveryPeriod)
		expect(t, "resources", f.states(), "configmaps v1 watching", "missing widgets.example.com", "missing *.example.com")
		api.put("default", "w", "3", "widgets.example.com")
		api.put("default", "a", "1")
		synctest.Wait()
		expect(t, "changes", f.next(), fmt.Sprintf("added configmaps/default/a %d watch", rv+2))
		// And comes again.
		api.configure(func() { api.discovery.groups = append(standardGroups(), widgets("v1")) })
		settle(2 * discoveryRetry)
		expect(t, "changes", f.next(), fmt.Sprintf("added widgets.example.com/default/w %d relist", rv+1))
	})
}

// A resource that is refused never stops the others, has a reason, and heals by itself.
func TestForbiddenResourceIsIsolated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		api.intercept = failing("configmaps", 403, "Forbidden", "list", "watch")
		api.put("default", "a", "1")
		api.put("default", "web", "1", "deployments.apps")
		f := api.manage("configmaps,deployments.apps")
		expect(t, "changes", f.next(), "added deployments.apps/default/web 102 relist")
		expect(t, "resources", f.states(), "configmaps v1 forbidden list", "deployments.apps v1 watching")
		o := f.m.Overview()
		if m := o.Resources[0].Message; !o.Settled() || !strings.Contains(m, "list of configmaps: scripted Forbidden") {
			t.Errorf("settled %t, message %q", o.Settled(), m)
		}
		settle(time.Hour)
		if n := len(api.seen()); n > 700 {
			t.Errorf("%d requests in an hour", n)
		}
		if warns := f.log.lines("level=WARN"); len(warns) != 1 || !strings.Contains(warns[0], "state=forbidden verb=list") {
			t.Errorf("logged %q, want one line", warns)
		}
		api.heal()
		settle(90 * time.Second)
		expect(t, "changes", f.next(), "added configmaps/default/a 101 relist")
		expect(t, "resources", f.states(), "configmaps v1 watching", "deployments.apps v1 watching")
		if lines := f.log.lines("followed again"); len(lines) != 1 {
			t.Errorf("logged %q", lines)
		}
	})
}

// An API server that cannot be used is one line in the log, a reason in the overview, and no end of anything.
func TestAPIUnusable(t *testing.T) {
	discovery := func(f func(http.ResponseWriter, *request) bool) func(*api) {
		return func(a *api) { a.intercept = onlyFor(f, "") }
	}
	refusing := func(code int, reason string) func(*api) {
		return discovery(func(w http.ResponseWriter, _ *request) bool {
			refuse(w, code, reason, "scripted "+reason)
			return true
		})
	}
	port := 40000
	tests := []struct {
		name   string
		script func(*api)
		advice string
	}{
		{"refused", func(a *api) { a.network.refuse() }, "the API server cannot be reached; check KUBECONFIG's server and the network: "},
		{"reset", discovery(abort), "cannot be reached"},
		{"silent", discovery(func(_ http.ResponseWriter, r *request) bool { <-r.Context().Done(); return true }), "cannot be reached"},
		{"changing texts", discovery(func(w http.ResponseWriter, _ *request) bool {
			port++
			refuse(w, 500, "InternalError", fmt.Sprintf("read tcp 127.0.0.1:%d: reset", port))
			return true
		}), "does not answer as it should"},
		{"401", refusing(401, "Unauthorized"), "does not accept the credentials"},
		{"403", refusing(403, "Forbidden"), "bind the ClusterRole system:discovery"},
		{"404", refusing(404, "NotFound"), "no Kubernetes API at this address"},
		{"503", refusing(503, "ServiceUnavailable"), "it may be starting"},
		{"no groups", func(a *api) { a.discovery.groups = nil }, "is KUBECONFIG's server a Kubernetes API server?"},
	}
	for _, test := range tests {
		check := func(t *testing.T, f *managed, api *api) {
			t.Helper()
			o := f.m.Overview()
			if o.Reached || o.Settled() || !strings.Contains(o.Message, test.advice) {
				t.Errorf("overview %+v, want a message with %q", o, test.advice)
			}
			if warns := f.log.lines("level=WARN"); len(warns) != 1 || !strings.Contains(warns[0], "Kubernetes API cannot be used") || !strings.Contains(warns[0], test.advice) {
				t.Errorf("logged %q, want one line with %q", warns, test.advice)
			}
			if n := len(api.seen()); n > 1000 {
				t.Errorf("%d requests in ten minutes", n)
			}
			api.heal()
			api.configure(func() { api.discovery.groups = standardGroups() })
			settle(2 * time.Minute)
			expect(t, "resources", f.states(), "configmaps v1 watching", "deployments.apps v1 watching")
			if o := f.m.Overview(); !o.Settled() || o.Message != "" {
				t.Errorf("overview after healing %+v", o)
			}
			if lines := f.log.lines("level=INFO", "can be used again"); len(lines) != 1 {
				t.Errorf("logged %q", f.log.lines())
			}
		}
		t.Run("from the start/"+test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newAPI(t)
				test.script(api)
				f := api.manage("configmaps,deployments.apps")
				settle(10 * time.Minute)
				check(t, f, api)
			})
		})
		t.Run("later/"+test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newAPI(t)
				api.put("default", "a", "1")
				f := api.manage("configmaps,deployments.apps")
				f.next()
				settle(time.Minute)
				api.configure(func() { test.script(api) })
				settle(10 * time.Minute)
				check(t, f, api)
				rv := api.put("default", "a", "2")
				synctest.Wait()
				expect(t, "changes", f.next(), fmt.Sprintf("modified configmaps/default/a %d watch", rv))
				if reasons := f.counts.reasons(); len(reasons) > 0 {
					t.Errorf("relists for %v", reasons)
				}
			})
		})
	}
}

// An aggregated API that is down takes nothing with it.
func TestPartialDiscoveryFailure(t *testing.T) {
	for _, legacy := range []bool{false, true} {
		t.Run(fmt.Sprintf("legacy %t", legacy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newAPI(t)
				api.discovery.legacy = legacy
				api.discovery.groups = append(standardGroups(), widgets("v2", "v1"))
				api.discovery.stale = []string{"example.com/v1", "example.com/v2"}
				f := api.manage("configmaps,widgets.example.com,gadgets.none.io")
				expect(t, "resources", f.states(), "configmaps v1 watching", "missing gadgets.none.io", "unknown widgets.example.com")
				settle(10 * time.Minute)
				if lines := f.log.lines("level=WARN", "widgets.example.com"); len(lines) != 1 || !strings.Contains(lines[0], "cannot be discovered") {
					t.Errorf("logged %q, want one line", lines)
				}
				api.configure(func() { api.discovery.stale = nil })
				settle(2 * discoveryRetry)
				expect(t, "resources", f.states(), "configmaps v1 watching", "widgets.example.com v2 watching", "missing gadgets.none.io")
				// Once running, it is neither stopped nor moved to the version that is left.
				for _, stale := range [][]string{{"example.com/v2"}, {"example.com/v1", "example.com/v2"}} {
					api.configure(func() { api.discovery.stale = stale })
					before := len(api.seen())
					settle(5 * time.Minute)
					expect(t, "resources", f.states(), "configmaps v1 watching", "widgets.example.com v2 watching", "missing gadgets.none.io")
					for _, r := range api.seen()[before:] {
						if r.verb != "" {
							t.Errorf("%s of %s: the informer was touched", r.verb, r.resource)
						}
					}
				}
			})
		})
	}
}

func TestNamespaceScope(t *testing.T) {
	tests := []struct {
		name       string
		namespaces []string
		script     func(*api)
		want       []string // namespaces of the requests for objects, probes apart
	}{
		{"all", nil, func(*api) {}, []string{""}},
		{"one", []string{"one"}, func(*api) {}, []string{"one"}},
		{"cluster-wide rights", []string{"one", "two"}, func(*api) {}, []string{""}},
		{"no right to list all", []string{"one", "two"}, func(a *api) { a.intercept = forbiddenClusterWide("list") }, []string{"one", "two"}},
		{"no right to watch all", []string{"one", "two"}, func(a *api) { a.intercept = forbiddenClusterWide("watch") }, []string{"one", "two"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newAPI(t)
				for _, ns := range []string{"one", "two", "three"} {
					api.put(ns, "a", "1")
				}
				test.script(api)
				f := api.manage("configmaps", inNamespaces(test.namespaces...))
				var got []string
				for _, r := range api.seen("list") {
					if r.query.Get("limit") != "1" && !slices.Contains(got, r.namespace) {
						got = append(got, r.namespace)
					}
				}
				slices.Sort(got)
				expect(t, "namespaces", got, test.want...)
				selected := test.namespaces
				if selected == nil {
					selected = []string{"one", "two", "three"}
				}
				if n := len(f.next()); n != len(selected) {
					t.Errorf("%d changes, want those of %v", n, selected)
				}
				o := f.m.Overview()
				if r := o.Resources[0]; r.State != StateWatching || !r.Synced || !o.Settled() || r.Objects != len(selected) {
					t.Errorf("status %+v", r)
				}
				api.put("three", "a", "2")
				api.put("one", "a", "2")
				synctest.Wait()
				changes := f.next()
				if !slices.Contains(changes, "modified configmaps/one/a 105 watch") || len(changes) != 1 && test.namespaces != nil {
					t.Errorf("changes %q", changes)
				}
			})
		})
	}
	t.Run("cluster-scoped", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			api := newAPI(t)
			api.put("", "default", "1", "namespaces")
			f := api.manage("namespaces", inNamespaces("one", "two"))
			expect(t, "changes", f.next(), "added namespaces/default 101 relist")
		})
	})
	t.Run("excluded", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			api := newAPI(t)
			api.put("one", "a", "1")
			api.put("kube-system", "a", "1")
			f := api.manage("configmaps", func(o *Options) { o.ExcludeNamespaces = []string{"kube-system"} })
			expect(t, "changes", f.next(), "added configmaps/one/a 101 relist")
		})
	})
}

func forbiddenClusterWide(verbs ...string) func(http.ResponseWriter, *request) bool {
	refused := failing("configmaps", 403, "Forbidden", verbs...)
	return func(w http.ResponseWriter, r *request) bool { return r.namespace == "" && refused(w, r) }
}

// While it is not known which rights there are, the reason is named, and it heals.
func TestScopeIsRetried(t *testing.T) {
	tests := []struct {
		name   string
		script func(*api)
		want   string
		warns  int
	}{
		{"503", func(a *api) { a.intercept = failing("configmaps", 503, "ServiceUnavailable", "list") }, "configmaps v1 failing list", 1},
		{"401", func(a *api) { a.intercept = failing("configmaps", 401, "Unauthorized", "list") }, "configmaps v1 unauthorized list", 1},
		{"404", func(a *api) { a.intercept = failing("configmaps", 404, "NotFound", "watch") }, "configmaps v1 absent watch", 1},
		{"not a list", func(a *api) { a.intercept = answering("list", "<html>") }, "configmaps v1 failing list", 1},
		{"reset", func(a *api) { a.intercept = onlyFor(abort, "list") }, "configmaps v1 failing list", 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newAPI(t)
				api.put("one", "a", "1")
				test.script(api)
				f := api.manage("configmaps", inNamespaces("one", "two"))
				settle(10 * time.Minute)
				expect(t, "resources", f.states(), test.want)
				o := f.m.Overview()
				if !o.Settled() || o.Resources[0].Message == "" {
					t.Errorf("overview %+v, want it settled, with a reason", o)
				}
				if warns := f.log.lines("level=WARN", "resource=configmaps"); len(warns) != test.warns {
					t.Errorf("logged %q, want %d lines", warns, test.warns)
				}
				api.heal()
				settle(time.Minute)
				expect(t, "changes", f.next(), "added configmaps/one/a 101 relist")
				expect(t, "resources", f.states(), "configmaps v1 watching")
				if lines := f.log.lines("followed again"); len(lines) != test.warns {
					t.Errorf("logged %q", f.log.lines())
				}
			})
		})
	}
}

// One namespace in trouble speaks for the resource, and does not hold up the other.
func TestOneNamespaceForbidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		api.put("one", "a", "1")
		api.put("two", "a", "1")
		api.intercept = func(w http.ResponseWriter, r *request) bool {
			return r.namespace != "two" && failing("configmaps", 403, "Forbidden", "list", "watch")(w, r)
		}
		f := api.manage("configmaps", inNamespaces("one", "two"))
		expect(t, "changes", f.next(), "added configmaps/two/a 102 relist")
		expect(t, "resources", f.states(), "configmaps v1 forbidden list")
		o := f.m.Overview()
		if r := o.Resources[0]; r.Synced || !o.Settled() || r.Objects != 1 {
			t.Errorf("status %+v", r)
		}
		// The other one is not settled while its list is under way.
		api.configure(func() {
			api.intercept = func(w http.ResponseWriter, r *request) bool {
				if r.namespace == "two" {
					<-r.Context().Done()
					return true
				}
				return failing("configmaps", 403, "Forbidden", "list", "watch")(w, r)
			}
		})
		f.stop()
		f = api.manage("configmaps", inNamespaces("one", "two"))
		if f.m.Overview().Settled() {
			t.Error("settled, although one namespace has neither synced nor a reason why not")
		}
	})
}

func TestManagerStopsAtOnce(t *testing.T) {
	hang := func(verbs ...string) func(*api) {
		return func(a *api) {
			a.intercept = onlyFor(func(_ http.ResponseWriter, r *request) bool { <-r.Context().Done(); return true }, verbs...)
		}
	}
	for name, script := range map[string]func(*api){
		"watching":                  func(*api) {},
		"discovery is not answered": hang(""),
		"legacy discovery":          func(a *api) { a.discovery.legacy = true; hang("")(a) },
		"API refused":               func(a *api) { a.network.refuse() },
		"probe is not answered":     hang("list"),
		"watch is not answered":     hang("watch"),
		"list is not answered":      hang("list"),
		"overloaded":                func(a *api) { a.intercept = failing("", 429, "TooManyRequests", "list", "watch") },
	} {
		for _, after := range []time.Duration{0, time.Second, time.Minute} {
			t.Run(fmt.Sprintf("%s/%s", name, after), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					api := newAPI(t)
					script(api)
					f := api.manage("configmaps,deployments.apps,missing", inNamespaces("one", "two"))
					settle(after)
					if took := f.stop(); took > 0 {
						t.Errorf("stop took %s", took)
					}
					if n := len(f.m.Overview().Resources); n > 0 {
						t.Errorf("%d resources after the stop", n)
					}
				})
			})
		}
	}
}
