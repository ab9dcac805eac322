package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// masked stands for a secret in every print.
const masked = "***"

// maskAll hides that text is there, but not whether there is one.
func maskAll(text string) string {
	if text == "" {
		return ""
	}
	return masked
}

// Secret is a text that no print shows. The zero value is an empty one.
//
// The text is behind a pointer because fmt cannot call the methods of a value that lies in an unexported field of
// somebody else's struct: it prints what it finds there, which then is an address.
type Secret struct {
	text *string
}

// NewSecret returns text as a Secret.
func NewSecret(text string) Secret {
	if text == "" {
		return Secret{}
	}
	return Secret{text: &text}
}

// Decode takes text literally; the empty text is an unset secret.
func (s *Secret) Decode(text string) error {
	*s = NewSecret(text)
	return nil
}

// Reveal returns the text itself.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// IsSet tells whether the text is not empty.
func (s Secret) IsSet() bool { return s.text != nil }

// Equal compares the texts.
func (s Secret) Equal(t Secret) bool { return s.Reveal() == t.Reveal() }

// String returns a mask, or nothing for an empty secret.
func (s Secret) String() string { return maskAll(s.Reveal()) }

// GoString returns what String returns, quoted.
func (s Secret) GoString() string { return strconv.Quote(s.String()) }

// MarshalText returns what String returns; it serves JSON and YAML.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue returns what String returns.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

func (*Secret) mask(text string) string { return maskAll(text) }

// ServerURL is the address of a NATS server. No print shows the user and password in it.
type ServerURL struct {
	full      Secret
	shown     string
	websocket bool
	userinfo  bool
}

// String returns the URL with a mask in place of user and password.
func (u ServerURL) String() string { return u.shown }

// GoString returns what String returns, quoted.
func (u ServerURL) GoString() string { return strconv.Quote(u.shown) }

// MarshalText returns what String returns.
func (u ServerURL) MarshalText() ([]byte, error) { return []byte(u.shown), nil }

// LogValue returns what String returns.
func (u ServerURL) LogValue() slog.Value { return slog.StringValue(u.shown) }

// Reveal returns the URL to connect to. It always has a scheme.
func (u ServerURL) Reveal() string { return u.full.Reveal() }

// ServerURLs are the addresses of the servers of one NATS system.
type ServerURLs []ServerURL

// Decode reads a comma list with at least one item.
func (u *ServerURLs) Decode(text string) error {
	items, err := splitList(text, strings.IndexByte)
	if err != nil {
		return err
	}
	if items == nil {
		return errors.New("names no server")
	}
	var faults problems
	urls := make(ServerURLs, 0, len(items))
	for i, item := range items {
		server, parseErr := parseServerURL(item)
		if parseErr != nil {
			faults = append(faults, fmt.Errorf("server %d of the list: %w", i+1, parseErr))
			continue
		}
		if len(urls) > 0 && urls[0].websocket != server.websocket {
			faults = append(faults, fmt.Errorf("server %d of the list: mixes WebSocket and other connections", i+1))
			continue
		}
		urls = append(urls, server)
	}
	*u = urls
	return faults.asError()
}

// String returns the comma list that Decode reads, with masks.
func (u ServerURLs) String() string {
	texts := make([]string, len(u))
	for i, server := range u {
		texts[i] = server.String()
	}
	return strings.Join(texts, ",")
}

// Reveal returns the URLs to connect to.
func (u ServerURLs) Reveal() []string {
	texts := make([]string, len(u))
	for i, server := range u {
		texts[i] = server.Reveal()
	}
	return texts
}

// parseServerURL accepts no more than the client makes use of, so that a path or a query, which the client would
// ignore, cannot be half of a password with a slash in it. Its errors quote nothing, for the same reason.
func parseServerURL(text string) (ServerURL, error) {
	if !strings.Contains(text, "://") {
		text = "nats://" + text
	}
	u, err := url.Parse(text)
	if err != nil {
		return ServerURL{}, errors.New("not a URL")
	}
	server := ServerURL{
		full:     NewSecret(text),
		shown:    u.Scheme + "://" + u.Host,
		userinfo: u.User != nil,
	}
	switch u.Scheme {
	case "nats", "tls":
	case "ws", "wss":
		server.websocket = true
	default:
		return ServerURL{}, errors.New("a scheme other than nats, tls, ws and wss")
	}
	if !isHost(u.Hostname()) {
		return ServerURL{}, errors.New("not a host name or address")
	}
	if port := u.Port(); port != "" && !isPort(port, 1) {
		return ServerURL{}, errors.New("a port outside 1 to 65535")
	}
	if strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return ServerURL{}, errors.New("something after the port")
	}
	if server.userinfo {
		server.shown = u.Scheme + "://" + masked + "@" + u.Host
	}
	return server, nil
}

var hostName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?$`)

// isHost admits underscores, which are no part of a host name but of the service names of container engines.
func isHost(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return len(host) <= 253 && hostName.MatchString(host) && !strings.Contains(host, "..")
}

func isPort(text string, least uint64) bool {
	port, err := strconv.ParseUint(text, 10, 16)
	return err == nil && port >= least
}

var portText = regexp.MustCompile(`:[^:/@\[\],][^:@\[\],]*`)

// mask works on lists that could not be read, too, so it does not split: a comma may be part of a password. It hides
// everything from the first scheme to the last @, and what stands in place of a port but is none, since that may be
// a password whose host is missing.
func (*ServerURLs) mask(text string) string {
	if end := strings.LastIndexByte(text, '@'); end >= 0 {
		start := 0
		if i := strings.Index(text[:end], "://"); i >= 0 {
			start = i + len("://")
		}
		text = text[:start] + masked + text[end:]
	}
	return portText.ReplaceAllStringFunc(text, func(port string) string {
		if isPort(strings.TrimSpace(port[1:]), 0) {
			return port
		}
		return ":" + masked
	})
}
