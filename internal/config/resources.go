package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ResourcePattern is one item of BRIDGE_RESOURCES.
type ResourcePattern struct {
	// Exclude tells that what Text matches is left out.
	Exclude bool
	// Text is resource, resource.group, resource.version.group, *.group or *, never the last with Exclude. Whether a
	// second label is a version or part of the group only discovery can tell, as in kubectl. A version of the core
	// group ends in a dot, as in "pods.v1.".
	Text string
}

// String returns the item in the form that ParseResourcePattern reads.
func (p ResourcePattern) String() string {
	if p.Exclude {
		return "-" + p.Text
	}
	return p.Text
}

// ParseResourcePattern reads one item of BRIDGE_RESOURCES. The error quotes the item and says what is wrong.
func ParseResourcePattern(item string) (ResourcePattern, error) {
	var p ResourcePattern
	p.Text, p.Exclude = strings.CutPrefix(item, "-")
	if p.Text == "*" {
		if p.Exclude {
			return ResourcePattern{}, fmt.Errorf("%q leaves nothing to watch", item)
		}
		return p, nil
	}
	// 63 for the resource, 63 for the version, 253 for the group and the dots between them.
	const maxLength = 63 + 1 + 63 + 1 + 253
	if len(p.Text) > maxLength {
		return ResourcePattern{}, fmt.Errorf("%q is longer than any resource's name", cut(item))
	}
	labels := strings.Split(p.Text, ".")
	switch {
	case labels[0] == "*":
		labels = labels[1:]
	case len(labels) == 3 && labels[2] == "":
		labels = labels[:2]
	}
	for _, label := range labels {
		switch {
		case strings.Contains(label, "/"):
			return ResourcePattern{}, fmt.Errorf("%q names a subresource, which cannot be watched", item)
		case !dnsLabel.MatchString(label):
			return ResourcePattern{}, fmt.Errorf("%q is no resource: %q is not a name of a-z, 0-9 and -", item, label)
		}
	}
	return p, nil
}

// ResourcePatterns are the distinct items of BRIDGE_RESOURCES.
type ResourcePatterns []ResourcePattern

// Decode reads a comma list that includes something and does not both include and exclude the same text.
func (p *ResourcePatterns) Decode(text string) error {
	items, err := splitList(text, strings.IndexByte)
	if err != nil {
		return err
	}
	if items == nil {
		return errors.New("names no resource")
	}
	var faults problems
	patterns := make(ResourcePatterns, 0, len(items))
	for _, item := range items {
		pattern, parseErr := ParseResourcePattern(item)
		if parseErr != nil {
			faults = append(faults, parseErr)
			continue
		}
		opposite := ResourcePattern{Exclude: !pattern.Exclude, Text: pattern.Text}
		if slices.Contains(patterns, opposite) {
			faults = append(faults, fmt.Errorf("%q is both named and excluded", pattern.Text))
		}
		patterns = append(patterns, pattern)
	}
	includes := func(p ResourcePattern) bool { return !p.Exclude }
	if faults == nil && !slices.ContainsFunc(patterns, includes) {
		faults = append(faults, fmt.Errorf("only excludes, so it selects nothing; begin it with *, as in %q", "*,"+patterns.String()))
	}
	*p = patterns
	return faults.asError()
}

// String returns the comma list that Decode reads.
func (p ResourcePatterns) String() string {
	texts := make([]string, len(p))
	for i, pattern := range p {
		texts[i] = pattern.String()
	}
	return strings.Join(texts, ",")
}
