package e2e

import (
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/deltabridge/deltabridge/integration/harness"
)

// doctor runs `bridge doctor` with the rig's environment.
func (r *rig) doctor() (code int, report string) {
	r.Helper()
	env := maps.Clone(r.env)
	delete(env, "BRIDGE_HTTP_ADDR")
	b := harness.StartBridge(r, env, "doctor")
	code = b.WaitExit(r, harness.Patience)
	if b.Stderr() != "" {
		r.Errorf("standard error has\n%s", b.Stderr())
	}
	return code, b.Stdout()
}

// requireDoctor ends the test unless the doctor's exit code is as wanted, every finding begins one of its lines, and only
// those lines fail that are named.
func (r *rig) requireDoctor(code int, findings ...string) {
	r.Helper()
	got, report := r.doctor()
	if got != code {
		r.Fatalf("the exit code is %d, want %d:\n%s", got, code, report)
	}
	fails := 0
	for _, want := range findings {
		if !strings.Contains("\n"+report, "\n"+want) {
			r.Errorf("no line begins with %q:\n%s", want, report)
		}
		if strings.HasPrefix(want, "FAIL") {
			fails++
		}
	}
	if n := strings.Count("\n"+report, "\nFAIL"); n != fails {
		r.Errorf("%d lines fail, want %d:\n%s", n, fails, report)
	}
	for _, line := range strings.Split(strings.TrimSpace(report), "\n") {
		if !strings.HasPrefix(line, "ok    ") && !strings.HasPrefix(line, "warn  ") && !strings.HasPrefix(line, "FAIL  ") {
			r.Errorf("a line has no mark: %q", line)
		}
	}
}

// allow makes a user with rights, and takes the rig's bridge to it.
func (r *rig) allow(user, namespace string, rules ...rbacv1.PolicyRule) {
	r.Helper()
	r.set("KUBECONFIG", r.plane.User(r.T, user))
	if len(rules) == 0 {
		return
	}
	if err := r.plane.Grant(r.Context(), user, namespace, rules...); err != nil {
		r.Fatal(err)
	}
	// What is granted is in force a moment later.
	harness.Eventually(r, harness.Patience, func() error {
		missing := fmt.Sprintf("resource %s: the right to %s is missing", rules[0].Resources[0], rules[0].Verbs[0])
		if _, report := r.doctor(); strings.Contains(report, missing) {
			return fmt.Errorf("the grant is not in force:\n%s", report)
		}
		return nil
	})
}

func rule(group, resource string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
}

// kubeconfig writes the admin's kubeconfig with a change.
func (r *rig) kubeconfig(change func(*clientcmdapi.Config)) string {
	r.Helper()
	config, err := clientcmd.LoadFromFile(r.plane.Kubeconfig())
	if err != nil {
		r.Fatal(err)
	}
	change(config)
	path := r.TempDir() + "/kubeconfig"
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		r.Fatal(err)
	}
	return path
}

func TestDoctorFindsNothing(t *testing.T) {
	r := newRig(t, configMaps, deployments)
	r.requireDoctor(0,
		"ok    configuration: ",
		"ok    kubernetes: https://127.0.0.1:",
		"ok    resource configmaps: can be listed and watched",
		"ok    resource deployments.apps: can be listed and watched",
		"ok    nats: connected to nats://127.0.0.1:",
		"ok    jetstream: answers",
		"ok    stream KUBE: does not exist yet; BRIDGE_STREAM_MODE=create creates it",
	)
	if _, err := r.check.JS.Stream(t.Context(), "KUBE"); err == nil {
		t.Fatal("the doctor has created the stream")
	}

	b := r.start()
	r.create(configMaps, r.configMap("a", "1"))
	r.require()
	before := r.lastSequence()
	r.requireDoctor(0, "ok    stream KUBE: fits", "ok    stream KUBE: last writer of main: epoch 1, ")
	if after := r.lastSequence(); after != before {
		t.Errorf("the doctor has published: the last sequence was %d and is %d", before, after)
	}
	r.stop(b)
}

// lastSequence waits until the stream is quiet, for watermarks are written too.
func (r *rig) lastSequence() uint64 {
	r.Helper()
	last := uint64(0)
	harness.Eventually(r, harness.Patience, func() error {
		stream, err := r.check.JS.Stream(r.Context(), "KUBE")
		if err != nil {
			return err
		}
		now := stream.CachedInfo().State.LastSeq
		if quiet := now == last && now > 0; quiet && stream.CachedInfo().State.LastTime.Before(time.Now().Add(-12*time.Second)) {
			return nil
		}
		last = now
		return fmt.Errorf("the last sequence is %d and still moves", now)
	})
	return last
}

func TestDoctorOnConfiguration(t *testing.T) {
	base := newRig(t, configMaps)
	t.Run("bad values", func(t *testing.T) {
		r := base.with(t, "BRIDGE_STREAM_MODE", "destroy", "BRIDGE_KUBE_QPS", "many")
		r.requireDoctor(2, `FAIL  configuration: BRIDGE_STREAM_MODE="destroy"`, `FAIL  configuration: BRIDGE_KUBE_QPS="many"`)
	})
	t.Run("no kubeconfig", func(t *testing.T) {
		base.with(t, "KUBECONFIG", "/no/such/file").requireDoctor(2, `FAIL  configuration: KUBECONFIG="/no/such/file"`)
	})
	t.Run("not a kubeconfig", func(t *testing.T) {
		path := t.TempDir() + "/kubeconfig"
		if err := os.WriteFile(path, []byte("apiVersion: v1\nkind: Config\nclusters: 7\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		base.with(t, "KUBECONFIG", path).requireDoctor(2, `FAIL  configuration: KUBECONFIG="`+path)
	})
	t.Run("no such context", func(t *testing.T) {
		base.with(t, "BRIDGE_KUBE_CONTEXT", "elsewhere").requireDoctor(2, `FAIL  configuration: KUBECONFIG=`)
	})
	t.Run("unknown variable", func(t *testing.T) {
		base.with(t, "BRIDGE_RESOURCE", "pods").requireDoctor(0, "warn  configuration: BRIDGE_RESOURCE: ")
	})
}

// with returns the rig for a subtest, with a changed environment.
func (r *rig) with(t *testing.T, pairs ...string) *rig {
	changed := *r
	changed.T, changed.env = t, maps.Clone(r.env)
	changed.set(pairs...)
	return &changed
}

func TestDoctorOnTheAPIServer(t *testing.T) {
	base := newRig(t, configMaps)
	t.Run("unreachable", func(t *testing.T) {
		r := base.with(t)
		r.set("KUBECONFIG", r.kubeconfig(func(c *clientcmdapi.Config) {
			for _, cluster := range c.Clusters {
				cluster.Server = fmt.Sprintf("https://127.0.0.1:%d", freePort(t))
			}
		}))
		r.requireDoctor(1, "FAIL  kubernetes: the API server cannot be reached", "ok    nats: ")
	})
	t.Run("unauthorized", func(t *testing.T) {
		r := base.with(t)
		r.set("KUBECONFIG", r.kubeconfig(func(c *clientcmdapi.Config) {
			for name := range c.AuthInfos {
				c.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: "stale"}
			}
		}))
		r.requireDoctor(1, "FAIL  kubernetes: the API server does not accept the credentials")
	})
	t.Run("no right", func(t *testing.T) {
		r := base.with(t)
		r.allow("doctor-none", "")
		r.requireDoctor(1,
			"warn  kubernetes: the namespace kube-system cannot be read",
			"warn  kubernetes: customresourcedefinitions cannot be read",
			"FAIL  resource configmaps: the right to list is missing in the whole cluster; the right to watch is missing in the whole cluster",
		)
	})
	t.Run("one verb", func(t *testing.T) {
		r := base.with(t, "BRIDGE_RESOURCES", "configmaps,nodes")
		r.allow("doctor-verbs", "", rule("", "configmaps", "list"), rule("", "nodes", "list", "watch"))
		r.requireDoctor(1,
			"FAIL  resource configmaps: the right to watch is missing in the whole cluster\n",
			"ok    resource nodes: can be listed and watched",
		)
	})
	t.Run("namespaced rights", func(t *testing.T) {
		r := base.with(t, "BRIDGE_NAMESPACES", base.ns)
		r.allow("doctor-namespaced", r.ns, rule("", "configmaps", "list", "watch"))
		r.requireDoctor(0, "ok    resource configmaps: can be listed and watched")
		r.set("BRIDGE_NAMESPACES", r.ns+",elsewhere")
		r.requireDoctor(1,
			"FAIL  resource configmaps: the right to list is missing in namespace elsewhere; the right to watch is missing in namespace elsewhere\n")
	})
	t.Run("lease", func(t *testing.T) {
		r := base.with(t, "BRIDGE_LEADER_ELECT", "true", "BRIDGE_LEASE_NAMESPACE", base.ns)
		r.requireDoctor(0, "ok    lease "+r.ns+"/deltabridge-main: may be read, created and updated")
		r.allow("doctor-lease", "", rule("", "configmaps", "list", "watch"), rule("coordination.k8s.io", "leases", "get", "create"))
		r.requireDoctor(1, "FAIL  lease "+r.ns+"/deltabridge-main: the right to update leases.coordination.k8s.io is missing in namespace "+r.ns)
	})
	t.Run("unknown resource", func(t *testing.T) {
		r := base.with(t, "BRIDGE_RESOURCES", "configmaps,widgets.example.com")
		r.requireDoctor(0, "ok    resource configmaps: ", "warn  resource widgets.example.com: the API server does not have it")
		r.set("BRIDGE_RESOURCES", "widgets.example.com")
		r.requireDoctor(1, "warn  resource widgets.example.com: ", "FAIL  resources: BRIDGE_RESOURCES selects nothing")
	})
}

func TestDoctorOnTheBroker(t *testing.T) {
	base := newRigWithout(t, configMaps)
	t.Run("down", func(t *testing.T) {
		r := base.with(t, "NATS_URL", fmt.Sprintf("nats://127.0.0.1:%d", freePort(t)))
		r.requireDoctor(1, "FAIL  nats: no NATS server answers; check NATS_URL", "ok    resource configmaps: ")
	})
	t.Run("bad credentials", func(t *testing.T) {
		r := base.with(t)
		r.on(harness.StartNATS(t, harness.Users()))
		r.set("NATS_USER", "bridge", "NATS_PASSWORD", "hidden-password")
		r.requireDoctor(1, "FAIL  nats: NATS refuses the credentials; check NATS_CREDS")
		if _, report := r.doctor(); strings.Contains(report, "hidden-password") {
			t.Errorf("a password is shown:\n%s", report)
		}
	})
	t.Run("missing credentials", func(t *testing.T) {
		r := base.with(t, "NATS_CREDS", "/no/such/creds")
		r.on(harness.StartNATS(t))
		r.requireDoctor(1, "FAIL  nats: a file that the NATS connection needs is missing: ")
	})
	t.Run("no JetStream", func(t *testing.T) {
		r := base.with(t)
		r.on(harness.StartNATS(t, harness.WithoutJetStream))
		r.requireDoctor(1, "ok    nats: ", "FAIL  jetstream: JetStream cannot be used: ")
	})
	t.Run("may not publish", func(t *testing.T) {
		r := base.with(t)
		r.on(harness.StartNATS(t, harness.Users(&server.User{
			Username: "bridge", Password: "bridge",
			Permissions: &server.Permissions{Publish: &server.SubjectPermission{Allow: []string{"$JS.API.>", "kube.main"}}},
		})))
		r.createStream(nil)
		r.set("NATS_USER", "bridge", "NATS_PASSWORD", "bridge")
		r.requireDoctor(1, "ok    stream KUBE: fits", "FAIL  nats: ")
	})
}

// createStream makes the bridge's stream as a user would, with changes.
func (r *rig) createStream(change func(*jetstream.StreamConfig)) {
	r.Helper()
	if _, err := r.check.JS.CreateStream(r.Context(), r.stream(change)); err != nil {
		r.Fatal(err)
	}
}

func TestDoctorOnTheStream(t *testing.T) {
	base := newRigWithout(t, configMaps)
	t.Run("missing and required", func(t *testing.T) {
		r := base.with(t, "BRIDGE_STREAM_MODE", "require")
		r.on(harness.StartNATS(t))
		r.requireDoctor(1, "FAIL  stream KUBE: stream KUBE does not exist, and BRIDGE_STREAM_MODE=require forbids creating it")
	})
	for name, c := range map[string]struct {
		change   func(*jetstream.StreamConfig)
		mode     string
		code     int
		findings []string
	}{
		"work queue":                    {func(s *jetstream.StreamConfig) { s.Retention = jetstream.WorkQueuePolicy }, "create", 1, []string{"FAIL  stream KUBE: stream KUBE has workqueue retention"}},
		"work queue, managed":           {func(s *jetstream.StreamConfig) { s.Retention = jetstream.WorkQueuePolicy }, "manage", 1, []string{"FAIL  stream KUBE: stream KUBE has workqueue retention"}},
		"other subjects":                {func(s *jetstream.StreamConfig) { s.Subjects = []string{"other.>"} }, "create", 1, []string{"FAIL  stream KUBE: stream KUBE takes other.>, not kube.main"}},
		"other subjects, managed":       {func(s *jetstream.StreamConfig) { s.Subjects = []string{"other.>"} }, "manage", 0, []string{"ok    stream KUBE: fits once its configuration is updated"}},
		"no acknowledgements":           {func(s *jetstream.StreamConfig) { s.NoAck, s.AllowAtomicPublish = true, false }, "require", 1, []string{"FAIL  stream KUBE: stream KUBE has no_ack set"}},
		"a max age, which is a warning": {func(s *jetstream.StreamConfig) { s.MaxAge = time.Hour }, "require", 0, []string{"warn  stream KUBE: max_age 1h", "ok    stream KUBE: fits"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := base.with(t, "BRIDGE_STREAM_MODE", c.mode)
			r.on(harness.StartNATS(t))
			r.createStream(c.change)
			r.requireDoctor(c.code, c.findings...)
		})
	}
	t.Run("another cluster", func(t *testing.T) {
		r := base.with(t)
		r.on(harness.StartNATS(t))
		r.createStream(nil)
		record := `{"format":1,"epoch":3,"holder":"somebody","clusterUID":"another","time":"2026-01-01T00:00:00Z"}`
		if _, err := r.check.JS.Publish(t.Context(), "kube.main", []byte(record)); err != nil {
			t.Fatal(err)
		}
		r.requireDoctor(1, `FAIL  stream KUBE: the stream holds what was published of another cluster as "main"`)
	})
}

func TestDoctorUsage(t *testing.T) {
	if code, stderr := runs(t, nil, "doctor", "everything"); code != 2 || !strings.Contains(stderr, "takes no arguments") {
		t.Errorf("code %d\n%s", code, stderr)
	}
	if code, _ := runs(t, nil, "doctor", "--help"); code != 0 {
		t.Errorf("--help: code %d", code)
	}
}
