// Command cabundle writes the root certificates that the image trusts, as PEM, to standard output. They are Mozilla's,
// taken from a pinned Go module rather than from the build machine, so that two builds of one commit trust the same roots
// wherever they are made.
package main

import (
	"bufio"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"os"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

func main() {
	if err := run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "cabundle:", err)
		os.Exit(1)
	}
}

// run writes every root that is trusted without conditions. A root that the bundle constrains (for example to
// certificates issued before some date) is left out: a PEM file cannot carry the condition.
func run(out io.Writer) error {
	w := bufio.NewWriter(out)
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		cert, err := x509.ParseCertificate(root.Certificate)
		if err != nil {
			return fmt.Errorf("parse root: %w", err)
		}
		fmt.Fprintf(w, "# %s\n", cert.Subject)
		if err := pem.Encode(w, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return fmt.Errorf("write %s: %w", cert.Subject, err)
		}
	}
	return w.Flush()
}
