package control

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParseRequest(t *testing.T) {
	for body, want := range map[string]Request{
		"":             {},
		"{}":           {},
		`{"format":1}`: {Format: 1},
		`{"resources":["pods"],"namespace":"n","selector":"a=b"}`: {Resources: []string{"pods"}, Namespace: "n", Selector: "a=b"},
	} {
		if got, err := parseRequest([]byte(body)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v", body, got, err)
		}
	}
	for body, want := range map[string]string{
		`{"format":2}`:        "format 2",
		`{"resource":"pods"}`: "unknown field",
		`[]`:                  "not understood",
		`{} {}`:               "more than one",
		`{`:                   "not understood",
	} {
		if _, err := parseRequest([]byte(body)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", body, err, want)
		}
	}
}

func FuzzParseRequest(f *testing.F) {
	f.Add(`{"resources":["pods"],"namespace":"n","selector":"a=b"}`)
	f.Add(`{"format":1}{}`)
	f.Fuzz(func(_ *testing.T, body string) { _, _ = parseRequest([]byte(body)) })
}

// A header is one line, whatever an error says.
func TestLine(t *testing.T) {
	if got := line(errors.New("one\r\ntwo\n\nthree")); got != "one two three" {
		t.Errorf("got %q", got)
	}
}

func TestSubjects(t *testing.T) {
	if StatusSubject("prod") != "deltabridge.prod.status" || ResyncSubject("prod") != "deltabridge.prod.resync" {
		t.Errorf("%s, %s", StatusSubject("prod"), ResyncSubject("prod"))
	}
}
