package config

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
)

var (
	clusterName = regexp.MustCompile(`^[A-Za-z0-9-]{1,63}$`)
	// subjectPrefix admits only what may stand in a key-value key, too, since a bucket may hold the subjects as keys.
	subjectPrefix = regexp.MustCompile(`^[A-Za-z0-9_=/-]+(\.[A-Za-z0-9_=/-]+)*$`)
	bucketName    = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)
	objectName    = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)
)

// maxStreamName leaves room, below the broker's 255 bytes, for what the stream of a bucket named after this one adds.
const maxStreamName = 240

// minSecretsKey is in bytes.
const minSecretsKey = 16

// maxSubjectPrefix is in bytes.
const maxSubjectPrefix = 128

// The bounds of a Lease's duration. Below the first, a garbage collection or a slow API server costs the lease.
const (
	minLease = 3 * time.Second
	maxLease = time.Hour
)

// maxObjectName is in bytes.
const maxObjectName = 253

// check records a fault if ok is false and the variable has none yet: a value that could not be read has its fault
// already, and its field says nothing.
func (l *loader) check(name string, ok bool, problem string) {
	if !ok && !l.faulty[name] {
		l.fault(name, errors.New(problem))
	}
}

// validate checks what decoding could not: ranges, names, and variables against one another.
func (l *loader) validate(c *Config) {
	const outOfRange = "out of range"
	l.check("BRIDGE_KUBE_QPS", c.KubeQPS > 0, outOfRange)
	l.check("BRIDGE_KUBE_BURST", c.KubeBurst > 0, outOfRange)
	l.check("BRIDGE_BUFFER_BYTES", c.BufferBytes >= 1<<20, "too small")
	l.check("BRIDGE_MAX_PENDING", c.MaxPending >= 1 && c.MaxPending <= 65536, outOfRange)
	l.check("BRIDGE_STREAM_REPLICAS", c.StreamReplicas >= 1 && c.StreamReplicas <= 5, outOfRange)
	l.check("BRIDGE_STREAM_HISTORY", c.StreamHistory == -1 || c.StreamHistory >= 1, outOfRange)
	// The broker refuses a lower limit than 100 ms.
	l.check("BRIDGE_STREAM_MAX_AGE", c.StreamMaxAge == 0 || c.StreamMaxAge >= 100*time.Millisecond, outOfRange)
	l.check("BRIDGE_STREAM_MAX_BYTES", c.StreamMaxBytes == -1 || c.StreamMaxBytes > 0, outOfRange)
	l.check("BRIDGE_WATERMARK_INTERVAL", c.WatermarkInterval >= 100*time.Millisecond, outOfRange)
	l.check("BRIDGE_RESYNC_PERIOD", c.ResyncPeriod == 0 || c.ResyncPeriod >= time.Second, outOfRange)
	l.check("BRIDGE_WATCH_PROGRESS_DEADLINE", c.WatchProgressDeadline >= time.Second, outOfRange)
	l.check("BRIDGE_LEASE_DURATION", c.LeaseDuration >= minLease && c.LeaseDuration <= maxLease, outOfRange)
	l.check("BRIDGE_LEASE_DURATION", c.LeaseDuration%time.Second == 0, "not whole seconds, and a Lease holds nothing else")
	l.check("BRIDGE_SHUTDOWN_GRACE", c.ShutdownGrace >= 0, "negative")

	l.check("BRIDGE_CLUSTER", clusterName.MatchString(c.Cluster), "not a cluster's name")
	l.check("BRIDGE_SUBJECT_PREFIX", subjectPrefix.MatchString(c.SubjectPrefix), "not subject tokens")
	l.check("BRIDGE_SUBJECT_PREFIX", len(c.SubjectPrefix) <= maxSubjectPrefix, "too long")
	l.check("BRIDGE_STREAM", isBrokerName(c.Stream), "not a stream's name")
	l.check("BRIDGE_STREAM", c.Oversize != OversizeObjectStore || bucketName.MatchString(c.Stream),
		"an Object Store cannot be named after it")
	l.check("BRIDGE_NATS_DOMAIN", c.NATSDomain == "" || isBrokerName(c.NATSDomain), "not a domain's name")
	l.check("NATS_CONTEXT", c.NATSContext == "" || isContext(c.NATSContext), "neither a name nor an absolute path")
	l.check("BRIDGE_LEASE_NAMESPACE", c.LeaseNamespace == "" || dnsLabel.MatchString(c.LeaseNamespace), "not a namespace's name")
	l.check("BRIDGE_LEASE_NAME", c.LeaseName == "" || objectName.MatchString(c.LeaseName) && len(c.LeaseName) <= maxObjectName,
		"not a name for a Lease")
	l.check("BRIDGE_HTTP_ADDR", isListenAddr(c.HTTPAddr), "not a listen address")
	l.check("BRIDGE_SECRETS_KEY", !c.SecretsKey.IsSet() || len(c.SecretsKey.Reveal()) >= minSecretsKey, "too short")

	for _, name := range c.ExcludeNamespaces {
		if slices.Contains(c.Namespaces, name) {
			l.fault("BRIDGE_EXCLUDE_NAMESPACES", fmt.Errorf("%q is in BRIDGE_NAMESPACES, too", name))
		}
	}
	l.validateAuthentication(c)
}

// validateAuthentication demands at most one way to log in: the client would try several in an order that no one
// expects.
func (l *loader) validateAuthentication(c *Config) {
	ways := []struct {
		variable, name string
		used           bool
	}{
		{"NATS_URL", "a user in NATS_URL", slices.ContainsFunc(c.NATSURL, func(u ServerURL) bool { return u.userinfo })},
		{"NATS_CREDS", "NATS_CREDS", c.NATSCreds != ""},
		{"NATS_NKEY", "NATS_NKEY", c.NATSNKey.IsSet()},
		{"NATS_USER", "NATS_USER", c.NATSUser != ""},
		{"NATS_TOKEN", "NATS_TOKEN", c.NATSToken.IsSet()},
	}
	first := ""
	for _, way := range ways {
		switch {
		case !way.used:
		case first == "":
			first = way.name
		default:
			l.check(way.variable, false, "cannot be combined with "+first+", unset one of them")
		}
	}
	l.check("NATS_PASSWORD", !c.NATSPassword.IsSet() || c.NATSUser != "", "set without NATS_USER")
	l.check("NATS_CERT", c.NATSCert == "" || c.NATSKey != "" || l.faulty["NATS_KEY"], "set without NATS_KEY")
	l.check("NATS_KEY", c.NATSKey == "" || c.NATSCert != "" || l.faulty["NATS_CERT"], "set without NATS_CERT")
}

// isBrokerName tells whether the broker takes the name for a stream or a domain.
func isBrokerName(name string) bool {
	return name != "" && len(name) <= maxStreamName && !strings.ContainsAny(name, `.*>/\`) &&
		!strings.ContainsFunc(name, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) })
}

// isContext tells whether a context of the nats command line can be meant; its names are those of files.
func isContext(name string) bool {
	if strings.ContainsAny(name, "\r\n\x00") {
		return false
	}
	return filepath.IsAbs(name) || !strings.ContainsAny(name, `/\`) && !strings.Contains(name, "..")
}

func isListenAddr(addr string) bool {
	host, port, err := net.SplitHostPort(addr)
	return err == nil && isPort(port, 0) && (host == "" || isHost(host))
}
