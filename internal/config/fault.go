package config

import (
	"fmt"
	"strings"
)

// Fault is one variable whose value the bridge cannot work with.
type Fault struct {
	// Variable is the environment variable's name.
	Variable string
	// Value is what it was set to, or its default; secrets in it are masked and long values are cut.
	Value string
	// Problem says what is wrong with the value.
	Problem string
	// Accepted says which values would do.
	Accepted string
}

// Error returns the fault as one line without a newline.
func (f Fault) Error() string {
	return fmt.Sprintf("%s=%q: %s; accepted: %s", f.Variable, f.Value, f.Problem, f.Accepted)
}

// Faults is the error of Load: every fault found, in the order of the documentation. A program that gets it is to
// print it and exit with 2.
type Faults []Fault

// Error returns one line per fault, without a newline at the end.
func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i, fault := range f {
		lines[i] = fault.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns each fault as a Fault.
func (f Faults) Unwrap() []error {
	errs := make([]error, len(f))
	for i, fault := range f {
		errs[i] = fault
	}
	return errs
}

// Warning is something that the user should know but that does not stop the bridge.
type Warning struct {
	// Variable is the environment variable's name.
	Variable string
	// Text says what is the matter and what to do. It never quotes the variable's value.
	Text string
}

// String returns the warning as one line without a newline.
func (w Warning) String() string {
	return w.Variable + ": " + w.Text
}

// problems is what a Decoder returns to report several faults of one value, each on a line of its own.
type problems []error

func (p problems) Error() string {
	texts := make([]string, len(p))
	for i, err := range p {
		texts[i] = err.Error()
	}
	return strings.Join(texts, ", ")
}

// asError keeps an empty list from becoming a non-nil error.
func (p problems) asError() error {
	if len(p) == 0 {
		return nil
	}
	return p
}
