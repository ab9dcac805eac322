package config

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kelseyhightower/envconfig"
)

// Every type with a grammar of its own is decoded through envconfig's interface.
var (
	_ envconfig.Decoder = (*Path)(nil)
	_ envconfig.Decoder = (*ByteSize)(nil)
	_ envconfig.Decoder = (*Namespaces)(nil)
	_ envconfig.Decoder = (*Payload)(nil)
	_ envconfig.Decoder = (*Format)(nil)
	_ envconfig.Decoder = (*SecretMode)(nil)
	_ envconfig.Decoder = (*Oversize)(nil)
	_ envconfig.Decoder = (*StreamMode)(nil)
	_ envconfig.Decoder = (*Storage)(nil)
	_ envconfig.Decoder = (*LogLevel)(nil)
	_ envconfig.Decoder = (*LogFormat)(nil)
	_ envconfig.Decoder = (*Secret)(nil)
	_ envconfig.Decoder = (*ServerURLs)(nil)
	_ envconfig.Decoder = (*ResourcePatterns)(nil)
	_ envconfig.Decoder = (*StripPaths)(nil)
)

// Path names a file that need not exist yet: it may be mounted later. Empty means none.
type Path string

// Decode refuses the content of a file where its name is wanted.
func (p *Path) Decode(text string) error {
	if isContent(text) {
		return errors.New("the content of a file where its path is wanted")
	}
	*p = Path(text)
	return nil
}

// mask hides a key that was pasted where its path is wanted.
func (p *Path) mask(text string) string {
	if isContent(text) {
		return maskAll(text)
	}
	return text
}

func isContent(text string) bool {
	return strings.ContainsAny(text, "\r\n\x00") || strings.Contains(text, "-----BEGIN")
}

// ByteSize is a number of bytes, or -1 where a variable has no limit.
type ByteSize int64

// byteUnits are those of Kubernetes quantities.
var byteUnits = []struct {
	suffix string
	bytes  int64
}{
	{"Ei", 1 << 60}, {"Pi", 1 << 50}, {"Ti", 1 << 40}, {"Gi", 1 << 30}, {"Mi", 1 << 20}, {"Ki", 1 << 10},
	{"E", 1e18}, {"P", 1e15}, {"T", 1e12}, {"G", 1e9}, {"M", 1e6}, {"k", 1e3},
}

// Decode reads a whole number with or without a unit: k, M, G, T, P, E are powers of 1000, Ki to Ei powers of 1024.
// resource.Quantity writes the same but is too generous for a limit: it takes 64m for 0.064 bytes, rounds it up to
// one, and cuts a number that is too large.
func (b *ByteSize) Decode(text string) error {
	digits, unit := text, int64(1)
	for _, u := range byteUnits {
		if rest, ok := strings.CutSuffix(text, u.suffix); ok {
			digits, unit = rest, u.bytes
			break
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return errors.New("too large a size")
	case err != nil:
		return errors.New("not a size")
	case n > math.MaxInt64/unit || n < math.MinInt64/unit:
		return errors.New("too large a size")
	}
	*b = ByteSize(n * unit)
	return nil
}

// String returns the size in the shortest form that Decode reads.
func (b ByteSize) String() string {
	shortest := strconv.FormatInt(int64(b), 10)
	for _, u := range byteUnits {
		if b == 0 || int64(b)%u.bytes != 0 {
			continue
		}
		if text := strconv.FormatInt(int64(b)/u.bytes, 10) + u.suffix; len(text) < len(shortest) {
			shortest = text
		}
	}
	return shortest
}

// Namespaces are distinct names of namespaces.
type Namespaces []string

// Decode reads a comma list.
func (n *Namespaces) Decode(text string) error {
	items, err := splitList(text, strings.IndexByte)
	if err != nil {
		return err
	}
	var faults problems
	for _, item := range items {
		if !dnsLabel.MatchString(item) {
			faults = append(faults, fmt.Errorf("%q is no namespace: 1 to 63 of a-z, 0-9 and -, which may be neither first nor last", item))
		}
	}
	*n = items
	return faults.asError()
}

// String returns the comma list that Decode reads.
func (n Namespaces) String() string { return strings.Join(n, ",") }

// splitList returns the distinct items of a comma list without the white space around them; nextComma returns the
// position of the first separating comma or -1. Empty items are ignored, for a comma at the end does no harm; but a
// list of nothing else is refused, because the templates that made it were meant to make items, and no items may mean
// everything.
func splitList(text string, nextComma func(text string, comma byte) int) ([]string, error) {
	var items []string
	for rest := text; rest != ""; {
		item := rest
		if i := nextComma(rest, ','); i >= 0 {
			item, rest = rest[:i], rest[i+1:]
		} else {
			rest = ""
		}
		if item = strings.TrimSpace(item); item != "" && !slices.Contains(items, item) {
			items = append(items, item)
		}
	}
	if text != "" && items == nil {
		return nil, errors.New("a list without items")
	}
	return items, nil
}

// dnsLabel is a label in the sense of RFC 1123 as Kubernetes uses it.
var dnsLabel = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Payload is what a message's body holds.
type Payload string

// PayloadObject is the whole object.
const PayloadObject Payload = "object"

// Decode refuses what later versions have in words of its own.
func (p *Payload) Decode(text string) error {
	if slices.Contains(laterPayloads, text) {
		return errors.New("is not supported by this version")
	}
	return decodeEnum(p, text, PayloadObject)
}

// Format is the CloudEvents content mode.
type Format string

// The content modes.
const (
	// FormatBinary puts the attributes in headers; the body is the plain object.
	FormatBinary Format = "binary"
	// FormatStructured puts attributes and object in a JSON envelope.
	FormatStructured Format = "structured"
)

// Decode accepts the constants' texts.
func (f *Format) Decode(text string) error {
	return decodeEnum(f, text, FormatBinary, FormatStructured)
}

// SecretMode is what becomes of the values of Secrets.
type SecretMode string

// The secret modes.
const (
	// SecretDigest replaces each value with a keyed digest of it.
	SecretDigest SecretMode = "digest"
	// SecretOmit removes the values.
	SecretOmit SecretMode = "omit"
	// SecretPlain publishes the values.
	SecretPlain SecretMode = "plain"
)

// Decode accepts the constants' texts.
func (m *SecretMode) Decode(text string) error {
	return decodeEnum(m, text, SecretDigest, SecretOmit, SecretPlain)
}

// Oversize is what becomes of a message above the broker's limit.
type Oversize string

// The ways to handle a message above the limit.
const (
	// OversizeObjectStore puts the body in the Object Store.
	OversizeObjectStore Oversize = "objectstore"
	// OversizeMetadata reduces the body to the object's metadata.
	OversizeMetadata Oversize = "metadata"
)

// Decode accepts the constants' texts.
func (o *Oversize) Decode(text string) error {
	return decodeEnum(o, text, OversizeObjectStore, OversizeMetadata)
}

// StreamMode says how far the bridge may write the stream's configuration.
type StreamMode string

// The stream modes.
const (
	// StreamCreate creates the stream if it is missing.
	StreamCreate StreamMode = "create"
	// StreamManage creates the stream and updates it to match the configuration.
	StreamManage StreamMode = "manage"
	// StreamRequire never writes the stream's configuration.
	StreamRequire StreamMode = "require"
)

// Decode accepts the constants' texts.
func (m *StreamMode) Decode(text string) error {
	return decodeEnum(m, text, StreamCreate, StreamManage, StreamRequire)
}

// Storage is where the broker keeps the stream.
type Storage string

// The kinds of storage.
const (
	// StorageFile survives a restart of the broker.
	StorageFile Storage = "file"
	// StorageMemory does not.
	StorageMemory Storage = "memory"
)

// Decode accepts the constants' texts.
func (s *Storage) Decode(text string) error {
	return decodeEnum(s, text, StorageFile, StorageMemory)
}

// LogLevel is the least level that is logged. It is a slog.Leveler, fit for slog.HandlerOptions.
type LogLevel string

// The log levels.
const (
	// LogDebug logs everything.
	LogDebug LogLevel = "debug"
	// LogInfo leaves out what only helps to find faults in the bridge.
	LogInfo LogLevel = "info"
	// LogWarn logs what may need attention.
	LogWarn LogLevel = "warn"
	// LogError logs failures only.
	LogError LogLevel = "error"
)

// Decode accepts the constants' texts.
func (l *LogLevel) Decode(text string) error {
	return decodeEnum(l, text, LogDebug, LogInfo, LogWarn, LogError)
}

// Level returns slog's level; that of the zero value is slog.LevelInfo.
func (l LogLevel) Level() slog.Level {
	switch l {
	case LogDebug:
		return slog.LevelDebug
	case LogWarn:
		return slog.LevelWarn
	case LogError:
		return slog.LevelError
	default:
		return slog.LevelInfo
	}
}

// LogFormat is the log's format.
type LogFormat string

// The log formats.
const (
	// LogJSON is one JSON object per line.
	LogJSON LogFormat = "json"
	// LogText is slog's text format.
	LogText LogFormat = "text"
)

// Decode accepts the constants' texts.
func (f *LogFormat) Decode(text string) error {
	return decodeEnum(f, text, LogJSON, LogText)
}

func decodeEnum[T ~string](dst *T, text string, accepted ...T) error {
	if !slices.Contains(accepted, T(text)) {
		return errors.New("not a value that it knows")
	}
	*dst = T(text)
	return nil
}
