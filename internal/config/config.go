// Package config reads the bridge's settings from environment variables: defaults, validation of all faults at once,
// masking of secrets, and the generated docs/config.md. It opens no file and no connection.
package config

import (
	"strings"
	"time"
)

// Config holds one field per environment variable. Load fills it; the tags are those of kelseyhightower/envconfig
// (envconfig: the variable, default, desc), with two of ours: accepted, which faults and the documentation quote, and
// shown, which the documentation prints where the default is not a literal value.
//
// Every way of printing a Config (fmt verbs, slog, JSON) masks its secrets.
type Config struct {
	// Kubeconfig is a path, or several joined by the system's path list separator. Empty means the in-cluster
	// configuration, and failing that ~/.kube/config.
	Kubeconfig Path `envconfig:"KUBECONFIG" shown:"in-cluster, else ~/.kube/config" accepted:"a path, or several as in kubectl" desc:"Where the API server is and how to log in, as in kubectl."`
	// KubeContext is a context of the kubeconfig; empty means its current one.
	KubeContext string `envconfig:"BRIDGE_KUBE_CONTEXT" shown:"current" accepted:"the name of a context" desc:"The context of the kubeconfig to use."`
	// KubeQPS is in requests a second.
	KubeQPS float32 `envconfig:"BRIDGE_KUBE_QPS" default:"50" accepted:"a number above 0" desc:"Requests a second to the API server, watches apart."`
	// KubeBurst is in requests.
	KubeBurst int `envconfig:"BRIDGE_KUBE_BURST" default:"100" accepted:"a whole number above 0" desc:"Requests to the API server that may exceed BRIDGE_KUBE_QPS for a moment."`

	// Cluster is a subject token and the last part of ce-source.
	Cluster string `envconfig:"BRIDGE_CLUSTER" default:"main" accepted:"1 to 63 of the characters A-Z, a-z, 0-9 and -" desc:"This cluster's name: a token of every subject and part of ce-source."`
	// AcceptClusterUID is the uid of a kube-system namespace, or empty.
	AcceptClusterUID string `envconfig:"BRIDGE_ACCEPT_CLUSTER_UID" accepted:"the uid of the cluster's kube-system namespace" desc:"Lets the cluster with this uid take the place of another one that was published under the same name. Without it the bridge refuses to mix two clusters: it is not ready and says so."`
	// Resources has at least one including pattern. Matching them to the served resources is the informers' work.
	Resources ResourcePatterns `envconfig:"BRIDGE_RESOURCES" default:"pods,services,configmaps,namespaces,nodes,deployments.apps,statefulsets.apps,daemonsets.apps,replicasets.apps,jobs.batch,cronjobs.batch,ingresses.networking.k8s.io" accepted:"a comma list of resource, resource.group, resource.version.group, *.group and * in lower case, at least one without a leading -" desc:"What to watch, named as in kubectl. A leading - excludes. * leaves out secrets, leases, both kinds of events, endpoints and endpointslices, and metrics.k8s.io unless they are named."`
	// Namespaces is empty for all namespaces.
	Namespaces Namespaces `envconfig:"BRIDGE_NAMESPACES" shown:"all" accepted:"a comma list of namespaces, none of them in BRIDGE_EXCLUDE_NAMESPACES" desc:"The namespaces to watch. If it is not empty, only namespaced rights are needed."`
	// ExcludeNamespaces shares no name with Namespaces.
	ExcludeNamespaces Namespaces `envconfig:"BRIDGE_EXCLUDE_NAMESPACES" accepted:"a comma list of namespaces, none of them in BRIDGE_NAMESPACES" desc:"The namespaces to leave out."`
	// Payload is PayloadObject.
	Payload Payload `envconfig:"BRIDGE_PAYLOAD" default:"object" accepted:"object" desc:"What a message's body holds: the whole object."`
	// Format is the CloudEvents content mode.
	Format Format `envconfig:"BRIDGE_FORMAT" default:"binary" accepted:"binary, structured" desc:"CloudEvents content mode: headers and the plain object, or a JSON envelope."`
	// Strip may be empty. Its paths are distinct, but one may lie below another.
	Strip StripPaths `envconfig:"BRIDGE_STRIP" default:"metadata.managedFields,metadata.annotations[kubectl.kubernetes.io/last-applied-configuration]" accepted:"a comma list of field names joined by dots, each of which a [key of a map] may follow; not metadata, metadata.name, metadata.namespace, metadata.uid, metadata.resourceVersion, apiVersion or kind" desc:"Fields removed before anything is stored or sent. An empty value removes none."`
	// Secrets says what becomes of the values of Secrets.
	Secrets SecretMode `envconfig:"BRIDGE_SECRETS" default:"digest" accepted:"digest, omit, plain" desc:"The values in data and stringData of Secrets: digest (keyed: a change shows, the value does not), omit, or plain."`
	// SecretsKey is used as the bytes that stand in the variable. If it is not set, a random key is to be made.
	SecretsKey Secret `envconfig:"BRIDGE_SECRETS_KEY" shown:"random at each start" accepted:"at least 16 bytes, taken literally" desc:"Key of the digests of BRIDGE_SECRETS. Set it to make digests comparable across restarts."`

	// ResyncPeriod is 0 for off, else at least a second: client-go does not go below.
	ResyncPeriod time.Duration `envconfig:"BRIDGE_RESYNC_PERIOD" default:"0" accepted:"0 for off, or a duration of at least 1s, such as 30m or 12h" desc:"How often every live object is published again, as synced: the informers' own resync. It waits while changes are to be published; the time between two can be longer than the period."`
	// BufferBytes is the payload held for events that are not yet acknowledged.
	BufferBytes ByteSize `envconfig:"BRIDGE_BUFFER_BYTES" default:"64Mi" accepted:"a size of at least 1Mi, such as 512Mi, 1Gi or 200000000" desc:"Payload held for events not yet acknowledged, all resources together, counted with 1 KiB for each beside its object. While it is used up, nothing more is read from the API server."`
	// WatermarkInterval is at least 100ms.
	WatermarkInterval time.Duration `envconfig:"BRIDGE_WATERMARK_INTERVAL" default:"10s" accepted:"a duration of at least 100ms, such as 1s, 10s or 1m" desc:"How often a checkpoint is written for a resource whose position has moved."`
	// WatchProgressDeadline is at least 1s.
	WatchProgressDeadline time.Duration `envconfig:"BRIDGE_WATCH_PROGRESS_DEADLINE" default:"3m" accepted:"a duration of at least 1s, such as 2m or 5m" desc:"How long a watch may bring neither event nor bookmark before its connection is doubted and it is opened again from the last version. API servers send a bookmark about every minute."`
	// MaxPending is in messages.
	MaxPending int `envconfig:"BRIDGE_MAX_PENDING" default:"2048" accepted:"a whole number from 1 to 65536" desc:"Publishes in flight."`
	// Oversize says what becomes of a message above the broker's limit.
	Oversize Oversize `envconfig:"BRIDGE_OVERSIZE" default:"objectstore" accepted:"objectstore, metadata" desc:"A message above the broker's limit: body in the Object Store <stream>_bodies and a reference in the message, or body reduced to metadata. Never dropped silently."`

	// NATSURL is empty only where NATS_URL is not set and NATSContext is: then the context names the servers.
	NATSURL ServerURLs `envconfig:"NATS_URL" default:"nats://127.0.0.1:4222" accepted:"a comma list of [scheme://][user:password@]host[:port] with the scheme nats, tls, ws or wss, not mixing ws or wss with the others; in user and password write special characters as %XX" desc:"The servers. A host without a scheme means nats. If it is not set and NATS_CONTEXT is, the context names the servers."`
	// NATSCreds is a path.
	NATSCreds Path `envconfig:"NATS_CREDS" accepted:"a path" desc:"A credentials file."`
	// NATSNKey is the path of a seed file, or a seed.
	NATSNKey Secret `envconfig:"NATS_NKEY" accepted:"a path, or a seed" desc:"An NKey seed or the file that holds it."`
	// NATSUser is empty unless NATSPassword is set: without a password, Load makes it NATSToken.
	NATSUser string `envconfig:"NATS_USER" accepted:"a user name, or a token if NATS_PASSWORD is not set" desc:"The user. Without NATS_PASSWORD it is a token, as for the nats command line."`
	// NATSPassword goes with NATSUser.
	NATSPassword Secret `envconfig:"NATS_PASSWORD" accepted:"a password, together with NATS_USER" desc:"The user's password."`
	// NATSToken excludes the other ways of authentication.
	NATSToken Secret `envconfig:"NATS_TOKEN" accepted:"a token" desc:"An authentication token."`
	// NATSCA is a path.
	NATSCA Path `envconfig:"NATS_CA" accepted:"a path" desc:"Certificate authorities that vouch for the servers, PEM."`
	// NATSCert is a path, set together with NATSKey.
	NATSCert Path `envconfig:"NATS_CERT" accepted:"a path, together with NATS_KEY" desc:"The client's certificate, PEM."`
	// NATSKey is a path, set together with NATSCert.
	NATSKey Path `envconfig:"NATS_KEY" accepted:"a path, together with NATS_CERT" desc:"The private key of the client's certificate, PEM."`
	// NATSContext is a name or an absolute path. What NATS_* variables set goes before what the context says.
	NATSContext string `envconfig:"NATS_CONTEXT" accepted:"the name of a context, or the absolute path of its file" desc:"A context of the nats command line. Other NATS_ variables that are set go before it."`
	// NATSDomain is empty for the domain of the server that answers.
	NATSDomain string `envconfig:"BRIDGE_NATS_DOMAIN" accepted:"a name without spaces, dots, slashes, * and >" desc:"The JetStream domain."`

	// SubjectPrefix is one or more subject tokens joined by dots, at most 128 bytes.
	SubjectPrefix string `envconfig:"BRIDGE_SUBJECT_PREFIX" default:"kube" accepted:"tokens of the characters A-Z, a-z, 0-9, -, _, = and / joined by dots, at most 128 bytes" desc:"The first token or tokens of every subject."`
	// Stream is the stream's name.
	Stream string `envconfig:"BRIDGE_STREAM" default:"KUBE" accepted:"a name of at most 240 bytes without spaces, dots, slashes, * and >; with BRIDGE_OVERSIZE=objectstore only A-Z, a-z, 0-9, - and _" desc:"The stream."`
	// StreamMode says who writes the stream's configuration.
	StreamMode StreamMode `envconfig:"BRIDGE_STREAM_MODE" default:"create" accepted:"create, manage, require" desc:"create the stream if it is missing; manage also updates it to match; require never writes its configuration."`
	// StreamReplicas is the number of copies that the broker keeps.
	StreamReplicas int `envconfig:"BRIDGE_STREAM_REPLICAS" default:"1" accepted:"a whole number from 1 to 5" desc:"Copies of the stream, when creating or managing it."`
	// StreamStorage is where the broker keeps the stream.
	StreamStorage Storage `envconfig:"BRIDGE_STREAM_STORAGE" default:"file" accepted:"file, memory" desc:"Where the broker keeps the stream, when creating or managing it."`
	// StreamHistory is in messages for each subject; -1 keeps all.
	StreamHistory int64 `envconfig:"BRIDGE_STREAM_HISTORY" default:"16" accepted:"a whole number above 0, or -1 for all" desc:"Messages kept for each object, when creating or managing the stream."`
	// StreamMaxAge is 0 for no limit.
	StreamMaxAge time.Duration `envconfig:"BRIDGE_STREAM_MAX_AGE" default:"0" accepted:"0 for no limit, or a duration of at least 100ms, such as 90s, 15m or 168h" desc:"Age at which the broker drops a message, when creating or managing the stream. A limit makes the stream forget objects that do not change."`
	// StreamMaxBytes is -1 for no limit.
	StreamMaxBytes ByteSize `envconfig:"BRIDGE_STREAM_MAX_BYTES" default:"-1" accepted:"-1 for no limit, or a size above 0, such as 512Mi, 1Gi or 200000000" desc:"Size at which the broker drops the oldest messages, when creating or managing the stream."`

	// LeaderElect makes only the holder of a Lease publish.
	LeaderElect bool `envconfig:"BRIDGE_LEADER_ELECT" default:"false" accepted:"true, false" desc:"Elect one of several replicas by a Lease; the others stand by. Needs the rights to get, create and update leases in the namespace of the Lease."`
	// LeaseNamespace is empty for the bridge's own namespace.
	LeaseNamespace string `envconfig:"BRIDGE_LEASE_NAMESPACE" shown:"own namespace" accepted:"the name of a namespace" desc:"Where the Lease is. The bridge's own namespace is that of its service account, else POD_NAMESPACE, else that of the kubeconfig's context, else default."`
	// LeaseName is empty for a name made of Cluster; Lease returns what is meant.
	LeaseName string `envconfig:"BRIDGE_LEASE_NAME" shown:"deltabridge-<cluster>, in lower case" accepted:"1 to 253 of the characters a-z, 0-9, - and ., between dots first and last none but a-z and 0-9" desc:"The name of the Lease. Replicas of one bridge share it, and no other bridge may."`
	// LeaseDuration is in whole seconds.
	LeaseDuration time.Duration `envconfig:"BRIDGE_LEASE_DURATION" default:"15s" accepted:"whole seconds from 3s to 1h, such as 15s or 1m" desc:"How long the others wait for a leader that has gone silent. A leader that cannot renew the Lease stops publishing after two thirds of it."`

	// ShutdownGrace bounds the drain after the first signal.
	ShutdownGrace time.Duration `envconfig:"BRIDGE_SHUTDOWN_GRACE" default:"20s" accepted:"0, or a duration such as 500ms, 20s or 2m" desc:"Time for the drain: stop intake, flush, write checkpoints. The Lease is released after it."`
	// HTTPAddr is a listen address; port 0 takes any free port.
	HTTPAddr string `envconfig:"BRIDGE_HTTP_ADDR" default:":8080" accepted:"host:port or :port, the port from 0 (any free one) to 65535" desc:"Where /livez, /readyz (?verbose names each resource), /metrics and /statusz (JSON) are served."`
	// Control switches the NATS micro service on.
	Control bool `envconfig:"BRIDGE_CONTROL" default:"true" accepted:"true, false" desc:"The NATS micro service deltabridge, with the endpoints deltabridge.<cluster>.status and deltabridge.<cluster>.resync. bridge resync needs it."`
	// LogLevel is the least level that is logged.
	LogLevel LogLevel `envconfig:"BRIDGE_LOG_LEVEL" default:"info" accepted:"debug, info, warn, error" desc:"The least level that is logged."`
	// LogFormat is json for programs, text for people.
	LogFormat LogFormat `envconfig:"BRIDGE_LOG_FORMAT" default:"json" accepted:"json, text" desc:"The log's format; text is for people."`
}

// Lease returns the name of the Lease. The default keeps of the cluster's name what is legal in it, so that two clusters
// whose names differ by case, or by dashes at the end, need names of their own if one API server holds both Leases.
func (c *Config) Lease() string {
	if c.LeaseName != "" {
		return c.LeaseName
	}
	return strings.TrimRight("deltabridge-"+strings.ToLower(c.Cluster), "-")
}
