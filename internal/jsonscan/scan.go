// Package jsonscan reads JSON texts in place. It finds members and elements in one pass over the bytes, validates all
// that it passes over, and allocates nothing, so that what a program does not need of a text costs it no more than a
// look at each byte.
//
// It accepts a text if and only if encoding/json's Valid does, and reads strings as encoding/json's Unmarshal does.
//
// All functions take a text and an index into it, skip white space there, and return the index after what they
// consumed. None writes to the text. Indices are never negative; an index at or beyond the end is an unexpected end.
package jsonscan

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// MaxDepth is how many arrays and objects may be nested in one another, the value itself included. It is the limit of
// encoding/json: what is nested deeper could not be read by whoever receives it.
const MaxDepth = 10000

// SyntaxError says where and why a text is not JSON.
type SyntaxError struct {
	Offset int    // index of the offending byte, the text's length if it ended too early
	Msg    string // what is wrong there
}

// Error returns the message and the offset.
func (e *SyntaxError) Error() string {
	return fmt.Sprintf("invalid JSON at offset %d: %s", e.Offset, e.Msg)
}

// unexpected describes the byte at i, which does not continue the text. It is kept out of the callers' loops.
//
//go:noinline
func unexpected(b []byte, i int, want string) error {
	if i >= len(b) {
		return &SyntaxError{Offset: len(b), Msg: "unexpected end, want " + want}
	}
	return &SyntaxError{Offset: i, Msg: fmt.Sprintf("unexpected byte %q, want %s", b[i], want)}
}

// Valid reports whether b is exactly one JSON value, optionally between white space.
func Valid(b []byte) bool {
	end, err := Skip(b, 0)
	return err == nil && SkipSpace(b, end) == len(b)
}

// SkipSpace returns the index of the first byte at or after i that is not white space.
func SkipSpace(b []byte, i int) int {
	if i < len(b) && b[i] > ' ' {
		return i
	}
	return skipSpace(b, i)
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

// Skip validates one value at i and returns the index after it. What follows the value is the caller's matter.
func Skip(b []byte, i int) (end int, err error) {
	return skipValue(b, i, 0)
}

// skipValue validates the value at i, which depth arrays and objects enclose.
func skipValue(b []byte, i, depth int) (int, error) {
	i = SkipSpace(b, i)
	if i >= len(b) {
		return i, unexpected(b, i, "a value")
	}
	switch c := b[i]; c {
	case '"':
		end, _, err := skipString(b, i)
		return end, err
	case '{':
		return skipObject(b, i, depth+1)
	case '[':
		return skipArray(b, i, depth+1)
	case 't':
		return skipLiteral(b, i, "true")
	case 'f':
		return skipLiteral(b, i, "false")
	case 'n':
		return skipLiteral(b, i, "null")
	default:
		if c == '-' || isDigit(c) {
			return skipNumber(b, i)
		}
		return i, unexpected(b, i, "a value")
	}
}

// skipObject validates the object at i; depth counts it.
func skipObject(b []byte, i, depth int) (int, error) {
	if depth > MaxDepth {
		return i, tooDeep(i)
	}
	i = SkipSpace(b, i+1)
	if i < len(b) && b[i] == '}' {
		return i + 1, nil
	}
	for {
		if i >= len(b) || b[i] != '"' {
			return i, unexpected(b, i, "a member's name")
		}
		var err error
		if i, _, err = skipString(b, i); err != nil {
			return i, err
		}
		if i = SkipSpace(b, i); i >= len(b) || b[i] != ':' {
			return i, unexpected(b, i, "':'")
		}
		if i, err = skipValue(b, i+1, depth); err != nil {
			return i, err
		}
		i = SkipSpace(b, i)
		if i < len(b) && b[i] == ',' {
			i = SkipSpace(b, i+1)
			continue
		}
		if i < len(b) && b[i] == '}' {
			return i + 1, nil
		}
		return i, unexpected(b, i, "',' or '}'")
	}
}

// skipArray validates the array at i; depth counts it.
func skipArray(b []byte, i, depth int) (int, error) {
	if depth > MaxDepth {
		return i, tooDeep(i)
	}
	i = SkipSpace(b, i+1)
	if i < len(b) && b[i] == ']' {
		return i + 1, nil
	}
	for {
		var err error
		if i, err = skipValue(b, i, depth); err != nil {
			return i, err
		}
		i = SkipSpace(b, i)
		if i < len(b) && b[i] == ',' {
			i++
			continue
		}
		if i < len(b) && b[i] == ']' {
			return i + 1, nil
		}
		return i, unexpected(b, i, "',' or ']'")
	}
}

//go:noinline
func tooDeep(i int) error {
	return &SyntaxError{Offset: i, Msg: fmt.Sprintf("more than %d arrays and objects in one another", MaxDepth)}
}

func skipLiteral(b []byte, i int, word string) (int, error) {
	for k := range len(word) {
		if i+k >= len(b) || b[i+k] != word[k] {
			return i, unexpected(b, i+k, word)
		}
	}
	return i + len(word), nil
}

func isDigit(c byte) bool { return c-'0' <= 9 }

func skipDigits(b []byte, i int) int {
	for i < len(b) && isDigit(b[i]) {
		i++
	}
	return i
}

// skipNumber validates the number at i, which begins with a minus or a digit.
func skipNumber(b []byte, i int) (int, error) {
	if b[i] == '-' {
		i++
	}
	if i >= len(b) || !isDigit(b[i]) {
		return i, unexpected(b, i, "a digit")
	}
	if b[i] == '0' {
		i++
	} else {
		i = skipDigits(b, i)
	}
	if i < len(b) && b[i] == '.' {
		i++
		if i >= len(b) || !isDigit(b[i]) {
			return i, unexpected(b, i, "a digit")
		}
		i = skipDigits(b, i)
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		if i >= len(b) || !isDigit(b[i]) {
			return i, unexpected(b, i, "a digit")
		}
		i = skipDigits(b, i)
	}
	return i, nil
}

// Each byte of a word, to look at eight bytes of a string at once.
const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// skipString validates the string at i, which begins with a quote. It reports special if the text between the quotes
// may not be the string's value: if it has an escape, or a byte that is not ASCII. (It may report so needlessly.)
func skipString(b []byte, i int) (end int, special bool, err error) {
	i++
	var seen uint64
	for {
		// Runs of plain bytes, eight at a time. Each subtraction sets the high bit of a byte that ends the run: of a
		// control character, a quote, a backslash. It may also set that of bytes after it, but of none before.
		for i+8 <= len(b) {
			w := binary.LittleEndian.Uint64(b[i:])
			marks := ((w - ones*' ') | (w ^ ones*'"' - ones) | (w ^ ones*'\\' - ones)) &^ w & highs
			if marks != 0 {
				n := bits.TrailingZeros64(marks) &^ 7 // bits of the plain bytes before it
				seen |= w & (1<<n - 1)
				i += n / 8
				break
			}
			seen |= w
			i += 8
		}
		if i >= len(b) {
			return i, false, unexpected(b, i, "a string's end")
		}
		switch c := b[i]; {
		case c == '"':
			return i + 1, special || seen&highs != 0, nil
		case c == '\\':
			special = true
			if i, err = skipEscape(b, i); err != nil {
				return i, false, err
			}
		case c < ' ':
			return i, false, unexpected(b, i, "an escape for a control character")
		default: // among the last seven bytes of the text
			seen |= uint64(c)
			i++
		}
	}
}

// skipEscape validates the escape at i, which begins with a backslash.
func skipEscape(b []byte, i int) (int, error) {
	i++
	if i >= len(b) {
		return i, unexpected(b, i, "an escape")
	}
	switch b[i] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 1, nil
	case 'u':
		for k := i + 1; k < i+5; k++ {
			if k >= len(b) || hexValue(b[k]) < 0 {
				return k, unexpected(b, k, "a hexadecimal digit")
			}
		}
		return i + 5, nil
	}
	return i, unexpected(b, i, "an escape")
}

func hexValue(c byte) rune {
	switch {
	case isDigit(c):
		return rune(c - '0')
	case 'a' <= c && c <= 'f':
		return rune(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return rune(c-'A') + 10
	}
	return -1
}
