package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// laterVariable is a variable of the contract that this version does not act on. To ignore it would leave the user
// in the belief that it does.
type laterVariable struct {
	// Name is the environment variable.
	Name string
	// Default is its value in the versions that have it, empty for none.
	Default string
	// Meaning is for the documentation.
	Meaning string
	// parse makes values comparable and refuses what is none.
	parse func(text string) (any, error)
	// accepted says what parse takes.
	accepted string
	// tuning tells that to go without the variable's effect does no harm.
	tuning bool
}

var laterVariables = []laterVariable{
	{Name: "BRIDGE_LABEL_SELECTOR", Meaning: "Label selector that the API server applies to every resource.", parse: parseText},
	{Name: "BRIDGE_FIELD_SELECTOR", Meaning: "Field selector that the API server applies to every resource.", parse: parseText},
	{Name: "BRIDGE_FILTER", Meaning: "CEL expression; false drops the event.", parse: parseText},
	{Name: "BRIDGE_TOMBSTONE_TTL", Default: "168h", Meaning: "How long a deleted object's messages stay.", parse: parseDuration, accepted: "a duration", tuning: true},
	{Name: "BRIDGE_STATE_BUCKET", Meaning: "Key-value bucket with the latest state of every object.", parse: parseText},
}

// laterPayloads are the values of BRIDGE_PAYLOAD that this version does not act on.
var laterPayloads = []string{"metadata", "patch", "none"}

func parseText(text string) (any, error)     { return text, nil }
func parseDuration(text string) (any, error) { return time.ParseDuration(text) }

// later reports the variables of later versions that ask for more than this version does. Empty ones do not.
func (l *loader) later() {
	for _, v := range laterVariables {
		text := l.env[v.Name]
		if text == "" {
			continue
		}
		asked, err := v.parse(text)
		switch {
		case err != nil:
			l.faults = append(l.faults, Fault{v.Name, cut(text), "not a value that it knows", v.accepted})
		case v.means(v.Default, asked):
		case v.tuning:
			l.warnings = append(l.warnings, Warning{v.Name, "has no effect, this version does not have it yet; unset it"})
		default:
			accepted := "nothing, unset it"
			if v.Default != "" {
				accepted = "only the default, " + v.Default
			}
			l.faults = append(l.faults, Fault{v.Name, cut(text), "this version does not have it yet", accepted})
		}
	}
}

// means tells whether text stands for the value asked.
func (v laterVariable) means(text string, asked any) bool {
	value, err := v.parse(text)
	return err == nil && value == asked
}

const ownPrefix = "BRIDGE_"

// serviceLink matches the variables that Kubernetes and container engines add for a service of the name bridge or
// bridge-something. They are nobody's typing mistake.
var serviceLink = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)

// serviceURL is the value of a variable <service>_PORT, which alone could be a mistake for a name of ours.
var serviceURL = regexp.MustCompile(`^(tcp|udp|sctp)://`)

// unknown warns of variables that begin like ours, sorted by name. It does not quote their values, for a misspelled
// variable may hold a secret.
func (l *loader) unknown() {
	var known []string
	for _, f := range l.fields {
		known = append(known, f.name)
	}
	for _, v := range laterVariables {
		known = append(known, v.Name)
	}
	var names []string
	for name, value := range l.env {
		isLink := serviceLink.MatchString(name) || strings.HasSuffix(name, "_PORT") && serviceURL.MatchString(value)
		if strings.HasPrefix(name, ownPrefix) && !slices.Contains(known, name) && !isLink {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		l.warnings = append(l.warnings, Warning{name, fmt.Sprintf("is unknown and has no effect; did you mean %s?", nearest(name, known))})
	}
}

// nearest returns the candidate with the smallest edit distance to name, the first of several.
func nearest(name string, candidates []string) string {
	return slices.MinFunc(candidates, func(a, b string) int {
		return editDistance(name, a) - editDistance(name, b)
	})
}

// editDistance counts the bytes to insert, remove or replace to make b of a (Levenshtein).
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
