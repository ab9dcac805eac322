package publisher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// StreamMode says what the bridge may do to the stream's configuration.
type StreamMode string

// The modes of BRIDGE_STREAM_MODE.
const (
	StreamCreate  StreamMode = "create"  // create it if it is missing
	StreamManage  StreamMode = "manage"  // also update it to match
	StreamRequire StreamMode = "require" // never write its configuration
)

// StreamOptions describe the stream that the bridge needs.
type StreamOptions struct {
	Name     string
	Mode     StreamMode
	Subjects []string // what the stream takes when the bridge creates it
	Needs    []string // what the bridge publishes on; the stream must take all of it
	Replicas int
	Storage  jetstream.StorageType
	History  int64 // messages kept for each object, -1 for all
	MaxAge   time.Duration
	MaxBytes int64
}

// StreamInfo is what the publisher needs to know of a stream that fits.
type StreamInfo struct {
	Created    time.Time
	MaxMsgSize int64 // bytes, header block included; -1 for no limit of the stream's own
	Batches    bool  // takes atomic batches
	// Warnings are properties that weaken a guarantee or withhold a feature, in full sentences.
	Warnings []string
}

// EnsureStream makes sure that the stream exists and fits, as far as the mode allows. An error says in a user's words
// what is wrong and what to do; the caller tries again, since somebody may mend it.
func EnsureStream(ctx context.Context, conn *Conn, o StreamOptions) (StreamInfo, error) {
	js, err := conn.JetStream()
	if err != nil {
		return StreamInfo{}, err
	}
	stream, err := js.Stream(ctx, o.Name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound) && o.Mode == StreamRequire:
		return StreamInfo{}, fmt.Errorf("stream %s does not exist, and BRIDGE_STREAM_MODE=require forbids creating it; create it with subjects %s", o.Name, strings.Join(o.Subjects, ","))
	case errors.Is(err, jetstream.ErrStreamNotFound):
		if stream, err = js.CreateStream(ctx, o.config()); err != nil {
			return StreamInfo{}, explainStream(o, "create", err)
		}
	case err != nil:
		return StreamInfo{}, explainStream(o, "look up", err)
	case o.Mode == StreamManage:
		merged, changed := o.merge(stream.CachedInfo().Config)
		if !changed {
			break
		}
		if stream, err = js.UpdateStream(ctx, merged); err != nil {
			return StreamInfo{}, explainStream(o, "update", err)
		}
	}
	info := stream.CachedInfo()
	if err := checkStream(o, info.Config); err != nil {
		return StreamInfo{}, err
	}
	size := int64(info.Config.MaxMsgSize)
	if size == 0 {
		size = -1
	}
	return StreamInfo{Created: info.Created, MaxMsgSize: size, Batches: info.Config.AllowAtomicPublish, Warnings: streamWarnings(info.Config)}, nil
}

// StreamCreated returns when the stream was created, to tell it from another one that took its name.
func StreamCreated(ctx context.Context, conn *Conn, name string) (time.Time, error) {
	js, err := conn.JetStream()
	if err != nil {
		return time.Time{}, err
	}
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return time.Time{}, fmt.Errorf("look up stream %s: %w", name, err)
	}
	return stream.CachedInfo().Created, nil
}

func (o StreamOptions) config() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:               o.Name,
		Description:        "Changes of Kubernetes objects, published by deltabridge",
		Subjects:           o.Subjects,
		Retention:          jetstream.LimitsPolicy,
		Storage:            o.Storage,
		Replicas:           o.Replicas,
		MaxMsgsPerSubject:  o.History,
		MaxAge:             o.MaxAge,
		MaxBytes:           o.MaxBytes,
		MaxMsgs:            -1,
		MaxMsgSize:         -1,
		MaxConsumers:       -1,
		Discard:            jetstream.DiscardOld,
		AllowRollup:        true,
		AllowMsgTTL:        true,
		AllowDirect:        true,
		AllowAtomicPublish: true,
	}
}

// merge brings what the bridge manages into an existing configuration and leaves the rest as it is. What the stream takes
// it goes on taking; a subject of the bridge's takes the place of those that it covers, since no two may overlap.
func (o StreamOptions) merge(have jetstream.StreamConfig) (jetstream.StreamConfig, bool) {
	want := o.config()
	out := have
	out.Subjects = slices.Clone(have.Subjects)
	if !o.served(have.Subjects) {
		for _, subject := range o.Subjects {
			if !covered(out.Subjects, subject) {
				out.Subjects = slices.DeleteFunc(out.Subjects, func(s string) bool { return covered([]string{subject}, s) })
				out.Subjects = append(out.Subjects, subject)
			}
		}
	}
	out.Replicas, out.MaxMsgsPerSubject, out.MaxAge, out.MaxBytes = want.Replicas, want.MaxMsgsPerSubject, want.MaxAge, want.MaxBytes
	out.AllowRollup, out.AllowMsgTTL, out.AllowDirect, out.AllowAtomicPublish = true, true, true, true
	changed := !slices.Equal(out.Subjects, have.Subjects) ||
		out.Replicas != have.Replicas || out.MaxMsgsPerSubject != have.MaxMsgsPerSubject ||
		out.MaxAge != have.MaxAge || out.MaxBytes != have.MaxBytes ||
		!have.AllowRollup || !have.AllowMsgTTL || !have.AllowDirect || !have.AllowAtomicPublish
	return out, changed
}

// served reports whether subjects take everything that the bridge publishes.
func (o StreamOptions) served(subjects []string) bool {
	return !slices.ContainsFunc(o.Needs, func(need string) bool { return !covered(subjects, need) })
}

// checkStream refuses a stream on which the guarantees cannot hold.
func checkStream(o StreamOptions, have jetstream.StreamConfig) error {
	for _, need := range o.Needs {
		if !covered(have.Subjects, need) {
			return fmt.Errorf("stream %s takes %s, not %s; add that subject to the stream, set BRIDGE_STREAM_MODE=manage, or name another BRIDGE_STREAM",
				o.Name, strings.Join(have.Subjects, ","), need)
		}
	}
	switch {
	case have.Retention != jetstream.LimitsPolicy:
		return fmt.Errorf("stream %s has %s retention, under which reading a message removes it; the bridge needs limits retention to know what it has published", o.Name, strings.ToLower(have.Retention.String()))
	case have.NoAck:
		return fmt.Errorf("stream %s has no_ack set, so that nobody can know what was stored; unset it", o.Name)
	case have.Sealed:
		return fmt.Errorf("stream %s is sealed and takes no messages; name another BRIDGE_STREAM", o.Name)
	case have.Mirror != nil:
		return fmt.Errorf("stream %s is a mirror and takes no messages; name its origin as BRIDGE_STREAM", o.Name)
	}
	return nil
}

// streamWarnings names what weakens a guarantee, or withholds a feature, on a stream that is otherwise fit.
func streamWarnings(have jetstream.StreamConfig) []string {
	var out []string
	if have.MaxAge > 0 {
		out = append(out, fmt.Sprintf("max_age %s: an object unchanged for longer is forgotten, published again, and its deletion cannot be reconstructed.", have.MaxAge))
	}
	if have.Discard == jetstream.DiscardOld && (have.MaxBytes > 0 || have.MaxMsgs > 0) {
		out = append(out, "max_bytes or max_msgs with discard=old: once full, the stream forgets the objects that have not changed for longest.")
	}
	if !have.AllowRollup || !have.AllowMsgTTL {
		out = append(out, "allow_rollup_hdrs or allow_msg_ttl is off: subjects of deleted objects cannot be expired.")
	}
	if !have.AllowDirect {
		out = append(out, "allow_direct is off: readers cannot be served by replicas.")
	}
	if !have.AllowAtomicPublish {
		out = append(out, "allow_atomic is off: many waiting versions of one object are published one by one.")
	}
	return out
}

// explainStream says in a user's words why a stream cannot be looked up or made.
func explainStream(o StreamOptions, verb string, err error) error {
	var api *jetstream.APIError
	switch {
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount), errors.Is(err, nats.ErrNoResponders):
		return fmt.Errorf("JetStream is not enabled on the NATS server or for this account (or BRIDGE_NATS_DOMAIN is wrong): %w", err)
	case errors.As(err, &api) && api.ErrorCode == codeSubjectsOverlap:
		return fmt.Errorf("another stream already takes the subjects %s; name it as BRIDGE_STREAM, or use another BRIDGE_SUBJECT_PREFIX: %w", strings.Join(o.Subjects, ","), err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout):
		return fmt.Errorf("no answer to the request to %s stream %s; the NATS user may lack permission for $JS.API: %w", verb, o.Name, err)
	}
	return fmt.Errorf("%s stream %s: %w", verb, o.Name, err)
}

// covered reports whether one of the patterns takes everything that the subject, which may itself be a pattern, stands
// for.
func covered(patterns []string, subject string) bool {
	for _, p := range patterns {
		if covers(strings.Split(p, "."), strings.Split(subject, ".")) {
			return true
		}
	}
	return false
}

func covers(pattern, subject []string) bool {
	for i, token := range pattern {
		if token == ">" {
			return len(subject) > i
		}
		if i >= len(subject) || subject[i] == ">" {
			return false
		}
		if token != "*" && token != subject[i] {
			return false
		}
	}
	return len(pattern) == len(subject)
}
