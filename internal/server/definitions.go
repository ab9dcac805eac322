package server

import (
	"fmt"
	"io"
	"strings"
)

// definition says what a metric is: for the registry and for docs/metrics.md.
type definition struct {
	name, kind, help string
	labels           []label
}

// label is a label of a metric.
type label struct {
	name string
	// values are all that the label can have; any other is counted as "other". Where there are none, bounds says what keeps
	// their number small.
	values []string
	bounds string
}

func (d definition) names() []string {
	out := make([]string, 0, len(d.labels))
	for _, l := range d.labels {
		out = append(out, l.name)
	}
	return out
}

// The labels.
var (
	group          = label{name: "group", bounds: "API group of the resource, empty for the core group"}
	resource       = label{name: "resource", bounds: "the resource's plural name; of those that `BRIDGE_RESOURCES` selects"}
	operation      = label{name: "op", values: []string{"added", "modified", "deleted", "left", "synced", "expired"}}
	suppressReason = label{name: "reason", values: []string{"unchanged", "older", "gone", "no-state", "overtaken"}}
	relistReason   = label{name: "reason", values: []string{
		"expired", "disconnected", "failed", "invalid-frame",
		"first", "no-watermark", "unreadable", "scope", "forgotten", "not-comparable", "rewind", "other-cluster",
	}}
	code           = label{name: "code", bounds: fmt.Sprintf("JetStream's `err_code`, or `denied`, `max_payload`, `timeout`, `no_responders`, `disconnected`, `client`, `read`; after %d of them `other`", maxCodes)}
	oversizeAction = label{name: "action", values: []string{"metadata", "identity", "none"}}
	state          = label{name: "state", values: []string{"starting", "watching", "forbidden", "unauthorized", "absent", "failing"}}
	condition      = label{name: "condition", values: []string{"shutdown", "nats", "leader", "stream", "ledger", "publishing", "kubernetes", "resource"}}
)

const prefix = "deltabridge_"

// The metrics. The names are the contract's: dashboards and alerts depend on them.
var (
	eventsReceived     = define("events_received_total", "counter", "Changes that the informers delivered.", group, resource, operation)
	messagesPublished  = define("messages_published_total", "counter", "Messages that the stream has acknowledged.", group, resource, operation)
	messagesSuppressed = define("messages_suppressed_total", "counter", "Changes that were not published, since the stream has them or something newer.", group, resource, suppressReason)
	ackDuration        = define("publish_ack_duration_seconds", "histogram", "Time from the first send of a message to its acknowledgement.")
	publishRetries     = define("publish_retries_total", "counter", "Appends that were refused or not answered, by the broker's error code or the client's reason.", code)
	pendingMessages    = define("pending_messages", "gauge", "Changes accepted and not yet acknowledged or suppressed.")
	pendingBytes       = define("pending_bytes", "gauge", "Size of those changes' objects.")
	parkedObjects      = define("parked_objects", "gauge", "Objects that cannot be published; /readyz?verbose names them.")
	watchHeld          = define("watch_held", "gauge", "1 while what the API server has to tell of the resource is left there, since the broker does not take what was read so far.", group, resource)
	relists            = define("relists_total", "counter", "Lists after a resource's first one, and first ones that are compared with the stream, by what made them necessary.", group, resource, relistReason)
	gaps               = define("gaps_total", "counter", "Changes before which intermediate versions may be missing.", group, resource)
	invalidFrames      = define("invalid_frames_total", "counter", "Watch frames that were not valid; each restarted its watch.", group, resource)
	informerState      = define("informer_state", "gauge", "1 for the state that a resource's informer is in, 0 for the others.", group, resource, state)
	newestEvent        = define("newest_event_timestamp_seconds", "gauge", "When the newest change was received, in Unix time.", group, resource)
	acknowledgedEvent  = define("acknowledged_event_timestamp_seconds", "gauge", "When the newest acknowledged change was received, in Unix time.", group, resource)
	watermark          = define("watermark_timestamp_seconds", "gauge", "When the resource's watermark was last written, in Unix time.", group, resource)
	objects            = define("objects", "gauge", "Objects in the informer's cache.", group, resource)
	leader             = define("leader", "gauge", "1 while this process is the one that publishes.")
	fenced             = define("fenced_total", "counter", "Times that another writer was found to have taken over.")
	oversize           = define("oversize_total", "counter", "Messages above a size limit of client, server or stream, by what their body was reduced to.", oversizeAction)
	natsConnected      = define("nats_connected", "gauge", "1 while there is a connection to NATS.")
	readyCondition     = define("ready", "gauge", "1 for a condition for being ready that is met, 0 for one that is not; those that are not looked at yet are absent.", condition)
	buildInfo          = define("build_info", "gauge", "Always 1; the labels say which build this is.",
		label{name: "version", bounds: "one"}, label{name: "commit", bounds: "one"}, label{name: "goversion", bounds: "one"})
)

// definitions are all of them, in the order of the documentation.
var definitions []definition

func define(name, kind, help string, labels ...label) definition {
	d := definition{name: prefix + name, kind: kind, help: help, labels: labels}
	definitions = append(definitions, d)
	return d
}

const docsHead = `# Metrics

<!-- Generated from internal/server/definitions.go by "go test ./internal/server -run TestDocs -update". Do not edit. -->

` + "`/metrics`" + ` on ` + "`BRIDGE_HTTP_ADDR`" + ` serves them in Prometheus' text format, beside those of the Go runtime
(` + "`go_*`" + `) and of the process (` + "`process_*`" + `). [charts/deltabridge/files](../charts/deltabridge/files) has alerts and a Grafana
dashboard on them; [runbook.md](runbook.md) says what to do about each alert.

| metric | type | labels | meaning |
|---|---|---|---|
`

const docsLabels = `
No label holds the name of an object or of a namespace. ` + "`group`" + ` and ` + "`resource`" + ` grow with the number of resources that are selected
and served, and nothing else; every other label has a fixed set of values, and what is none of them is counted as ` + "`other`" + `.

| label | of | values |
|---|---|---|
`

// WriteDocs writes docs/metrics.md, Markdown generated from the definitions.
func WriteDocs(w io.Writer) error {
	var b strings.Builder
	b.WriteString(docsHead)
	type row struct{ of, values string }
	rows := map[string][]row{}
	var order []string
	for _, d := range definitions {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", d.name, d.kind, quoted(d.names()), d.help)
		for _, l := range d.labels {
			values := l.bounds
			if len(l.values) > 0 {
				values = quoted(l.values)
			}
			if rows[l.name] == nil {
				order = append(order, l.name)
			}
			last := len(rows[l.name]) - 1
			if last >= 0 && rows[l.name][last].values == values {
				rows[l.name][last].of += ", `" + strings.TrimPrefix(d.name, prefix) + "`"
				continue
			}
			rows[l.name] = append(rows[l.name], row{of: "`" + strings.TrimPrefix(d.name, prefix) + "`", values: values})
		}
	}
	b.WriteString(docsLabels)
	for _, name := range order {
		for _, r := range rows[name] {
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", name, r.of, r.values)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func quoted(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return "`" + strings.Join(names, "`, `") + "`"
}
