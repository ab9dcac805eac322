package config

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/kelseyhightower/envconfig"
)

// maxShownValue is the length in bytes at which a fault cuts the value that it quotes.
const maxShownValue = 300

// Load reads the configuration from environ, which has the form of os.Environ; of several entries with one name the
// last counts. Values are taken literally: nothing in them is expanded, unquoted or trimmed, but for the white space
// around the items of a list. Empty items of a list are ignored. A variable that is set to the empty string is set:
// that means none to a variable without a default value, no paths to BRIDGE_STRIP, and is a fault otherwise.
//
// The error, if there is one, is of type Faults and holds every fault; the Config is then nil. Warnings come in
// either case.
//
// envconfig.Process would read the same struct in the same way, but only from the process's own environment, and
// would stop at the first fault; hence the loop over the fields here, with envconfig's tags and Decoder.
func Load(environ []string) (*Config, []Warning, error) {
	l := &loader{env: parseEnviron(environ), faulty: map[string]bool{}}
	c := new(Config)
	l.fields = fieldsOf(c)
	for _, f := range l.fields {
		text, set := l.env[f.name]
		if !set {
			text = f.def
		}
		if !set && text == "" {
			continue
		}
		if err := decode(f.value, text); err != nil {
			l.fault(f.name, err)
		}
	}

	if _, set := l.env["NATS_URL"]; !set && c.NATSContext != "" {
		c.NATSURL = nil
	}
	l.validate(c)
	l.later()
	l.unknown()

	if len(l.faults) > 0 {
		return nil, l.warnings, l.inOrder()
	}
	if c.NATSUser != "" && !c.NATSPassword.IsSet() {
		c.NATSToken, c.NATSUser = NewSecret(c.NATSUser), ""
	}
	return c, l.warnings, nil
}

// parseEnviron drops entries without a name or without a value, as they are no variables.
func parseEnviron(environ []string) map[string]string {
	env := make(map[string]string, len(environ))
	for _, entry := range environ {
		if name, value, ok := strings.Cut(entry, "="); ok && name != "" {
			env[name] = value
		}
	}
	return env
}

// field is one field of a Config with what its tags say.
type field struct {
	name, def, accepted string
	value               reflect.Value
}

func fieldsOf(c *Config) []field {
	v := reflect.ValueOf(c).Elem()
	fields := make([]field, 0, v.NumField())
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		fields = append(fields, field{
			name:     tag.Get("envconfig"),
			def:      tag.Get("default"),
			accepted: tag.Get("accepted"),
			value:    v.Field(i),
		})
	}
	return fields
}

// defaults is the Config of an empty environment before validation.
var defaults = sync.OnceValue(func() *Config {
	c := new(Config)
	for _, f := range fieldsOf(c) {
		if f.def == "" {
			continue
		}
		if err := decode(f.value, f.def); err != nil {
			panic(fmt.Sprintf("config: default of %s: %v", f.name, err))
		}
	}
	return c
})

// decode sets the field v from text. Its errors never quote text, for it may be a secret.
func decode(v reflect.Value, text string) error {
	switch p := v.Addr().Interface().(type) {
	case envconfig.Decoder:
		return p.Decode(text)
	case *string:
		*p = text
	case *bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return errors.New("neither true nor false")
		}
		*p = b
	case *int:
		n, err := parseInt(text, strconv.IntSize)
		if err != nil {
			return err
		}
		*p = int(n)
	case *int64:
		n, err := parseInt(text, 64)
		if err != nil {
			return err
		}
		*p = n
	case *float32:
		x, err := strconv.ParseFloat(text, 32)
		if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
			return errors.New("not a number")
		}
		*p = float32(x)
	case *time.Duration:
		d, err := time.ParseDuration(text)
		if err != nil {
			return errors.New("not a duration")
		}
		*p = d
	default:
		panic(fmt.Sprintf("config: no way to read a field of type %s", v.Type()))
	}
	return nil
}

// parseInt reads decimal digits only: in a configuration file 010 means ten, not eight.
func parseInt(text string, bits int) (int64, error) {
	n, err := strconv.ParseInt(text, 10, bits)
	if errors.Is(err, strconv.ErrRange) {
		return 0, errors.New("too large a number")
	}
	if err != nil {
		return 0, errors.New("not a whole number")
	}
	return n, nil
}

// loader collects what Load finds.
type loader struct {
	env      map[string]string
	fields   []field
	faulty   map[string]bool
	faults   Faults
	warnings []Warning
}

// fault records err, and each of its parts if it is a list of problems, against a variable of Config.
func (l *loader) fault(name string, err error) {
	f := l.field(name)
	list := problems{err}
	errors.As(err, &list)
	for _, problem := range list {
		l.faults = append(l.faults, Fault{
			Variable: name,
			Value:    l.shown(f),
			Problem:  problem.Error(),
			Accepted: f.accepted,
		})
	}
	l.faulty[name] = true
}

func (l *loader) field(name string) field {
	for _, f := range l.fields {
		if f.name == name {
			return f
		}
	}
	panic("config: no variable " + name)
}

// masker is implemented by the types of fields whose text may hold a secret.
type masker interface {
	// mask returns text fit for print. The text need not be a value that Decode accepts.
	mask(text string) string
}

// shown returns the text of a variable as a fault may quote it.
func (l *loader) shown(f field) string {
	text, set := l.env[f.name]
	if !set {
		text = f.def
	}
	if m, ok := f.value.Addr().Interface().(masker); ok {
		text = m.mask(text)
	}
	if f.name == "NATS_USER" && l.env["NATS_PASSWORD"] == "" {
		text = maskAll(text)
	}
	return cut(text)
}

// cut shortens text to maxShownValue bytes, at the start of a character.
func cut(text string) string {
	if len(text) <= maxShownValue {
		return text
	}
	end := maxShownValue
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
}

// inOrder returns the faults in the order of the struct, those of other variables last.
func (l *loader) inOrder() Faults {
	sorted := make(Faults, 0, len(l.faults))
	known := make(map[string]bool, len(l.fields))
	for _, f := range l.fields {
		known[f.name] = true
		for _, fault := range l.faults {
			if fault.Variable == f.name {
				sorted = append(sorted, fault)
			}
		}
	}
	for _, fault := range l.faults {
		if !known[fault.Variable] {
			sorted = append(sorted, fault)
		}
	}
	return sorted
}
