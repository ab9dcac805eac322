package e2e

import (
	"errors"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltabridge/deltabridge/integration/harness"
)

const configMapsPath = "/api/v1/configmaps"

// newProxyRig is newRig with a proxy between the bridge and the API server.
func newProxyRig(t *testing.T) (*rig, *harness.APIProxy) {
	t.Helper()
	r := newRig(t, configMaps)
	proxy := r.plane.StartProxy(t)
	r.set("KUBECONFIG", proxy.Kubeconfig())
	return r, proxy
}

// TestWatchClosedAgainAndAgain is case R4.
func TestWatchClosedAgainAndAgain(t *testing.T) {
	r, proxy := newProxyRig(t)
	r.start()
	const events, perWatch = 100, 5
	r.create(configMaps, r.configMap("a", "0"))
	r.awaitMessages(r.object(configMaps, "a"), 1)
	lists := proxy.Count("get", configMapsPath)
	first := len(proxy.Watches(configMapsPath)) - 1 // the watch that is open
	proxy.CloseWatchesAfter(perWatch)
	r.setValue("a", 0, events)
	s := r.require()
	if n := len(s.History(r.object(configMaps, "a"))); n != events+1 {
		t.Errorf("%d messages for %d versions", n, events+1)
	}
	watches := proxy.Watches(configMapsPath)[first:]
	if len(watches) < events/perWatch {
		t.Errorf("%d watches for %d events", len(watches), events)
	}
	for i, w := range watches[1:] {
		if before := watches[i]; w.ResourceVersion != before.LastVersion {
			t.Errorf("watch %d began at %q, the one before ended at %q", i+1, w.ResourceVersion, before.LastVersion)
		}
	}
	if n := proxy.Count("get", configMapsPath) - lists; n != 0 {
		t.Errorf("%d lists", n)
	}
}

// TestInvalidFrame puts a line that is not JSON in the place of an event.
func TestInvalidFrame(t *testing.T) {
	r, proxy := newProxyRig(t)
	b := r.start()
	r.create(configMaps, r.configMap("a", "0"))
	r.awaitMessages(r.object(configMaps, "a"), 1)
	const times = 3
	for i := range times {
		proxy.CorruptFrame(configMapsPath)
		r.setValue("a", 10*i, 10)
		r.awaitMessages(r.object(configMaps, "a"), 1+10*(i+1))
	}
	s := r.require()
	if n := len(s.History(r.object(configMaps, "a"))); n != 1+10*times {
		t.Errorf("%d messages for %d versions", n, 1+10*times)
	}
	if n := b.Metric(t, "deltabridge_invalid_frames_total", `resource="configmaps"`); n != times {
		t.Errorf("%v invalid frames were counted, there were %d", n, times)
	}
	requireNoStorm(t, b)
}

// TestAPIFaults has the API server refuse watches and lists in every way it knows, for a while each.
func TestAPIFaults(t *testing.T) {
	for name, fault := range map[string]harness.Fault{
		"forbidden":     {Status: 403, Reason: metav1.StatusReasonForbidden},
		"unauthorized":  {Status: 401, Reason: metav1.StatusReasonUnauthorized},
		"gone":          {Status: 410, Reason: metav1.StatusReasonExpired},
		"too many":      {Status: 429, Reason: metav1.StatusReasonTooManyRequests, RetryAfter: 1},
		"internal":      {Status: 500, Reason: metav1.StatusReasonInternalError},
		"unavailable":   {Status: 503, Reason: metav1.StatusReasonServiceUnavailable},
		"timeout":       {Status: 504, Reason: metav1.StatusReasonTimeout},
		"no such thing": {Status: 404, Reason: metav1.StatusReasonNotFound},
	} {
		for _, verb := range []string{"watch", "all"} {
			t.Run(name+" "+verb, func(t *testing.T) {
				r, proxy := newProxyRig(t)
				b := r.start()
				r.create(configMaps, r.configMap("a", "0"))
				r.awaitMessages(r.object(configMaps, "a"), 1)
				fault.Path, fault.Times = configMapsPath, 3
				if verb == "watch" {
					fault.Verb = harness.VerbWatch
				}
				proxy.Fail(fault)
				proxy.CloseWatchesAfter(1)
				r.setValue("a", 0, 5)
				r.create(configMaps, r.configMap("b", "0"))
				r.delete(configMaps, r.ns, "b")
				harness.Eventually(t, harness.Patience, func() error {
					if !faultWasMet(proxy, fault.Status) {
						return errors.New("the fault was never met")
					}
					return nil
				})
				proxy.Heal()
				r.setValue("a", 5, 5)
				r.require()
				harness.Eventually(t, harness.Patience, func() error { return b.Ready(t.Context()) })
			})
		}
	}
}

func faultWasMet(proxy *harness.APIProxy, status int) bool {
	for _, request := range proxy.Requests() {
		if request.Status == status {
			return true
		}
	}
	return false
}

// TestAPIServerRestarts loses every watch at once, and the API server its watch cache.
func TestAPIServerRestarts(t *testing.T) {
	r := newRig(t, configMaps, pods)
	r.start()
	for i := range 10 {
		r.create(configMaps, r.configMap(fmt.Sprintf("c-%d", i), "0"))
	}
	r.setValue("c-0", 0, 5)
	r.require()
	if err := r.plane.RestartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The recording cannot go on where it was; what comes from here on is recorded anew.
	r.record()
	r.setValue("c-0", 5, 5)
	r.delete(configMaps, r.ns, "c-1")
	r.create(pods, r.pod("p"))
	r.require()
}
