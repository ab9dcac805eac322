package chart

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// The lines of the README between which the table of values stands.
const (
	valuesBegin = "<!-- values: generated from values.yaml by `make generate`; do not edit -->\n"
	valuesEnd   = "<!-- end of values -->\n"
)

// TestReadme holds the table of values in the chart's README to the comments in values.yaml.
func TestReadme(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(chartDir(), "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	table, err := valuesTable(content)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(chartDir(), "README.md")
	readme, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, begins := strings.Cut(string(readme), valuesBegin)
	old, tail, ends := strings.Cut(rest, valuesEnd)
	switch {
	case !begins || !ends:
		t.Fatalf("the README does not hold the lines %q and %q", valuesBegin, valuesEnd)
	case *update:
		if err := os.WriteFile(path, []byte(head+valuesBegin+table+valuesEnd+tail), 0o644); err != nil {
			t.Fatal(err)
		}
	case old != table:
		t.Error("the chart's README is out of date; run make generate")
	}
}

func TestValuesTable(t *testing.T) {
	got, err := valuesTable([]byte("# A note.\n\n# -- The | first.\na: 1\nb:\n  # -- The second,\n  # of two lines.\n  c: [x, y]\n  # -- None.\n  d: null\n"))
	want := "\n| value | default | meaning |\n|---|---|---|\n| `a` | `1` | The \\| first. |\n| `b.c` | `[x, y]` | The second, of two lines. |\n| `b.d` | `null` | None. |\n\n"
	if err != nil || got != want {
		t.Errorf("valuesTable: %v\n%s\nwant\n%s", err, got, want)
	}
	if _, err := valuesTable([]byte("a:\n  b: 1\n")); err == nil {
		t.Error("a value without a comment is accepted")
	}
}

// valuesTable returns the table of the values with a comment that begins with "--". A value that neither has one nor is a
// map of others is an error.
func valuesTable(content []byte) (string, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(content, &document); err != nil {
		return "", fmt.Errorf("read the values: %w", err)
	}
	var out strings.Builder
	out.WriteString("\n| value | default | meaning |\n|---|---|---|\n")
	if err := writeRows(&out, "", document.Content[0]); err != nil {
		return "", err
	}
	out.WriteString("\n")
	return out.String(), nil
}

func writeRows(out *strings.Builder, prefix string, node *yaml.Node) error {
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		name := prefix + key.Value
		_, text, documented := strings.Cut(key.HeadComment, "# -- ")
		switch {
		case documented:
			text = strings.ReplaceAll(text, "\n# ", " ")
			shown, err := inline(value)
			if err != nil {
				return fmt.Errorf("print %s: %w", name, err)
			}
			cell := strings.NewReplacer("|", `\|`).Replace
			fmt.Fprintf(out, "| `%s` | `%s` | %s |\n", name, cell(shown), cell(text))
		case value.Kind == yaml.MappingNode && len(value.Content) > 0:
			if err := writeRows(out, name+".", value); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%s in line %d has no comment that begins with --", name, key.Line)
		}
	}
	return nil
}

// inline prints a value in one line.
func inline(node *yaml.Node) (string, error) {
	flat := *node
	if flat.Kind != yaml.ScalarNode {
		flat.Style = yaml.FlowStyle
	}
	text, err := yaml.Marshal(&flat)
	return strings.Join(strings.Fields(string(text)), " "), err
}
