package config

import (
	"fmt"
	"io"
	"strings"
	"text/template"

	"github.com/kelseyhightower/envconfig"
)

const docsHead = `# Configuration

<!-- Generated from internal/config/config.go by "go test ./internal/config -run TestDocs -update". Do not edit. -->

The bridge takes its settings from environment variables. It reports every fault at once, one line each, and exits
with 2. An unknown variable that begins with ` + "`BRIDGE_`" + ` is a warning that names the nearest known one, unless it is
one of those that Kubernetes adds for a service of such a name (` + "`BRIDGE_SERVICE_HOST`, `BRIDGE_PORT`" + ` and so on).

- Values are taken literally: nothing in them is expanded or unquoted.
- In a comma list, white space around an item and empty items are ignored. A list of nothing but commas and spaces is
  a fault.
- An empty value means the same as no variable where the table's default is described rather than quoted (none, all,
  current and so on), removes nothing in ` + "`BRIDGE_STRIP`" + `, and is a fault elsewhere.
- Durations have a unit: ` + "`500ms`, `20s`, `15m`, `168h`" + `; ` + "`0`" + ` needs none.
- Sizes are whole numbers of bytes, or have a unit: ` + "`k`, `M`, `G`, `T`" + ` (powers of 1000), ` + "`Ki`, `Mi`, `Gi`, `Ti`" + `
  (powers of 1024).
- At most one way to log in to NATS may be set: ` + "`NATS_CREDS`, `NATS_NKEY`, `NATS_USER`, `NATS_TOKEN`" + ` or a user in
  ` + "`NATS_URL`" + `.
- Secrets are masked wherever the bridge prints its configuration.

| variable | default | accepted | meaning |
|---|---|---|---|
`

const docsRow = `{{range .}}| {{code .Key}} | {{with .Tags.Get "default"}}{{code .}}{{else}}{{with .Tags.Get "shown"}}{{cell .}}{{else}}none{{end}}{{end}} | {{cell (.Tags.Get "accepted")}} | {{cell (.Tags.Get "desc")}} |
{{end}}`

const docsLater = `
## Not in this version

Later versions act on these variables. Until then, setting one is answered as its last column says, so that nobody
believes it to have an effect. ` + "`BRIDGE_PAYLOAD`" + ` will accept %s, too;
until then these are faults.

| variable | default | meaning | if it is set |
|---|---|---|---|
{{range .}}| {{code .Name}} | {{with .Default}}{{code .}}{{else}}none{{end}} | {{cell .Meaning}} | {{.Effect}} |
{{end}}`

// WriteDocs writes docs/config.md, Markdown generated from the tags of Config.
func WriteDocs(w io.Writer) error {
	if _, err := io.WriteString(w, docsHead); err != nil {
		return fmt.Errorf("write head: %w", err)
	}
	funcs := template.FuncMap{"cell": markdownCell, "code": markdownCode}
	rows := template.Must(template.New("variables").Funcs(funcs).Parse(docsRow))
	if err := envconfig.Usaget("", new(Config), w, rows); err != nil {
		return fmt.Errorf("write table of variables: %w", err)
	}
	var payloads []string
	for _, p := range laterPayloads {
		payloads = append(payloads, markdownCode(p))
	}
	text := fmt.Sprintf(docsLater, strings.Join(payloads, ", "))
	later := template.Must(template.New("later").Funcs(funcs).Parse(text))
	if err := later.Execute(w, laterVariables); err != nil {
		return fmt.Errorf("write table of later variables: %w", err)
	}
	return nil
}

// Effect says what this version does when the variable is set.
func (v laterVariable) Effect() string {
	switch {
	case v.tuning:
		return "warning, unless the default"
	default:
		return "fault, unless the default"
	}
}

// markdownCell escapes what would end a table's cell or be taken for markup.
func markdownCell(text string) string {
	return strings.NewReplacer("|", `\|`, "*", `\*`, "<", `\<`, "[", `\[`).Replace(text)
}

func markdownCode(text string) string {
	return "`" + strings.ReplaceAll(text, "|", `\|`) + "`"
}
