package config

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"
)

// Setting is one variable with the value in effect, fit for print.
type Setting struct {
	// Name is the environment variable.
	Name string `json:"name"`
	// Value is in the form that the variable takes, secrets masked.
	Value string `json:"value"`
	// Default tells whether the value is the one of an empty environment.
	Default bool `json:"default"`
}

// Redacted returns every variable in the order of the documentation, secrets masked. NATS_USER without
// NATS_PASSWORD appears as the NATS_TOKEN that it is.
func (c Config) Redacted() []Setting {
	fields, defs := fieldsOf(&c), fieldsOf(defaults())
	settings := make([]Setting, len(fields))
	for i, f := range fields {
		value := format(f.value.Interface())
		settings[i] = Setting{Name: f.name, Value: value, Default: value == format(defs[i].value.Interface())}
		if f.name == "NATS_URL" && value == "" {
			settings[i].Default = true // not set; the servers are those of NATS_CONTEXT
		}
	}
	return settings
}

// format returns the value of a field in the form that its variable takes.
func format(value any) string {
	switch v := value.(type) {
	case float32:
		return strconv.FormatFloat(float64(v), 'f', -1, 32)
	case time.Duration:
		return formatDuration(v)
	default:
		return fmt.Sprint(v)
	}
}

// formatDuration leaves out the zeros that Duration.String adds: 168h, not 168h0m0s.
func formatDuration(d time.Duration) string {
	if d == 0 {
		return "0"
	}
	text := d.String()
	if rest, ok := strings.CutSuffix(text, "m0s"); ok {
		text = rest + "m"
	}
	if rest, ok := strings.CutSuffix(text, "h0m"); ok {
		text = rest + "h"
	}
	return text
}

// String returns the settings as name="value" pairs on one line, secrets masked.
func (c Config) String() string {
	settings := c.Redacted()
	texts := make([]string, len(settings))
	for i, s := range settings {
		texts[i] = s.Name + "=" + strconv.Quote(s.Value)
	}
	return strings.Join(texts, " ")
}

// GoString returns what String returns, so that %#v masks, too.
func (c Config) GoString() string { return "config.Config{" + c.String() + "}" }

// LogValue returns a group with one attribute per variable, secrets masked.
func (c Config) LogValue() slog.Value {
	settings := c.Redacted()
	attrs := make([]slog.Attr, len(settings))
	for i, s := range settings {
		attrs[i] = slog.String(s.Name, s.Value)
	}
	return slog.GroupValue(attrs...)
}

// MarshalJSON returns an object with one member per variable, secrets masked.
func (c Config) MarshalJSON() ([]byte, error) {
	values := make(map[string]string)
	for _, s := range c.Redacted() {
		values[s.Name] = s.Value
	}
	return json.Marshal(values)
}
