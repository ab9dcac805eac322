package config

import (
	"bytes"
	"flag"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write docs/config.md instead of comparing it")

const docsPath = "../../docs/config.md"

func TestDocs(t *testing.T) {
	var got bytes.Buffer
	if err := WriteDocs(&got); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(docsPath, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(docsPath)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("docs/config.md is out of date; run go test ./internal/config -run TestDocs -update\n(-file +generated)\n%s", diff)
	}
}

// TestDocsAreComplete holds the tags to what the documentation and the faults take from them.
func TestDocsAreComplete(t *testing.T) {
	var docs bytes.Buffer
	if err := WriteDocs(&docs); err != nil {
		t.Fatal(err)
	}
	typ := reflect.TypeFor[Config]()
	for i := range typ.NumField() {
		f := typ.Field(i)
		for _, tag := range []string{"envconfig", "accepted", "desc"} {
			if f.Tag.Get(tag) == "" {
				t.Errorf("field %s has no tag %s; a misquoted tag reads as none", f.Name, tag)
			}
		}
		if row := "| `" + f.Tag.Get("envconfig") + "` |"; strings.Count(docs.String(), row) != 1 {
			t.Errorf("documentation does not have one row that begins with %s", row)
		}
	}
	for _, v := range laterVariables {
		if row := "| `" + v.Name + "` |"; strings.Count(docs.String(), row) != 1 {
			t.Errorf("documentation does not have one row that begins with %s", row)
		}
	}
	for line := range strings.Lines(docs.String()) {
		if strings.HasPrefix(line, "|") && strings.Count(strings.ReplaceAll(line, `\|`, ""), "|") != 5 {
			t.Errorf("row does not have four cells: %s", line)
		}
	}
}
