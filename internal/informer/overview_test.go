package informer

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
)

// The status is asked for by probes; it must answer while an informer takes its time to stop.
func TestOverviewDuringStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		api.discovery.groups = append(standardGroups(), widgets("v1"))
		api.put("default", "w", "1", "widgets.example.com")
		release := make(chan struct{})
		f := api.manage("configmaps,widgets.example.com", func(o *Options) {
			o.Feeds = &sunk{hook: func() { <-release }}
		})
		api.configure(func() { api.discovery.groups = standardGroups() })
		settle(2 * discoveryPeriod)
		answered := make(chan []string, 1)
		go func() { answered <- f.states() }()
		select {
		case got := <-answered:
			expect(t, "resources", got, "configmaps v1 watching", "missing widgets.example.com")
		case <-time.After(time.Second):
			t.Error("the overview waits for the informer that stops")
		}
		close(release)
	})
}

// A list that has come but was not handed over yet is no list yet.
func TestSyncedMeansHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		api.put("default", "a", "1")
		release := make(chan struct{})
		f := api.manage("configmaps", func(o *Options) { o.Feeds = &sunk{hook: func() { <-release }} })
		o := f.m.Overview()
		if r := o.Resources[0]; r.Position != "" || r.State != StateStarting || r.Synced || o.Settled() {
			t.Errorf("status %+v, settled %t, want a list that came and is starting", r, o.Settled())
		}
		close(release)
		synctest.Wait()
		o = f.m.Overview()
		if r := o.Resources[0]; r.State != StateWatching || !r.Synced || !o.Settled() {
			t.Errorf("status %+v, settled %t", r, o.Settled())
		}
	})
}

// A deprecated version is warned of with every answer.
func TestWarningsAreLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		api.intercept = func(w http.ResponseWriter, r *request) bool {
			if r.verb != "" {
				w.Header().Set("Warning", fmt.Sprintf(`299 - "%s v1 is deprecated"`, r.resource))
			}
			return false
		}
		f := api.manage("configmaps,namespaces")
		for range 5 {
			settle(time.Minute)
			api.endWatches()
		}
		synctest.Wait()
		if n := len(api.seen("watch")); n < 10 {
			t.Errorf("%d watches", n)
		}
		for _, text := range []string{"configmaps v1 is deprecated", "namespaces v1 is deprecated"} {
			if lines := f.log.lines("level=WARN", "the API server warns", text); len(lines) != 1 {
				t.Errorf("logged %q", f.log.lines())
			}
		}
	})
	t.Run("bounded", func(t *testing.T) {
		log := &logged{}
		w := &apiWarnings{log: log.logger(), seen: map[string]bool{}}
		for i := range 1000 {
			w.HandleWarningHeaderWithContext(t.Context(), 299, "-", fmt.Sprint("text ", i))
			w.HandleWarningHeaderWithContext(t.Context(), 199, "-", fmt.Sprint("not for users ", i))
		}
		if n := len(log.lines()); n != maxWarnings || len(w.seen) != maxWarnings {
			t.Errorf("%d lines, %d remembered, want %d", n, len(w.seen), maxWarnings)
		}
	})
}

func TestNewManagerRefuses(t *testing.T) {
	for name, config := range map[string]*rest.Config{
		"no rate":    {Host: "http://api.test"},
		"a bad host": {Host: "http://%zz", QPS: 1, Burst: 1},
	} {
		if _, err := NewManager(Options{Config: config}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestClusterUID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		answer := `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system","uid":"the-uid"}}`
		api.intercept = func(w http.ResponseWriter, r *request) bool {
			if answer == "" {
				<-r.Context().Done()
				return true
			}
			if r.verb == "get" && r.URL.Path == "/api/v1/namespaces/kube-system" {
				_, _ = w.Write([]byte(answer))
			}
			return true
		}
		if uid, err := ClusterUID(context.Background(), api.config()); uid != "the-uid" || err != nil {
			t.Errorf("uid %q, %v", uid, err)
		}
		// An answer that is none says nothing of the cluster: it must not be taken for one that has no uid.
		for _, answer = range []string{"<html>", `[]`, ""} {
			begin := time.Now()
			uid, err := ClusterUID(context.Background(), api.config())
			if uid != "" || err == nil || time.Since(begin) > 10*time.Second {
				t.Errorf("answer %q: uid %q, error %v after %s", answer, uid, err, time.Since(begin))
			}
		}
		api.heal()
		api.configure(func() { api.intercept = failing("namespaces", 403, "Forbidden", "get") })
		if uid, err := ClusterUID(context.Background(), api.config()); uid != "" || err != nil {
			t.Errorf("uid %q, error %v without the right to read it", uid, err)
		}
	})
}
