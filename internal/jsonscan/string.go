package jsonscan

import (
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// String reads the string at i and returns its value and the index after it. The value aliases b (and must not be
// written to) unless it had to be made: escapes are resolved, and bytes that are not UTF-8 and surrogates without
// their other half become U+FFFD, all as encoding/json does.
func String(b []byte, i int) (value []byte, end int, err error) {
	if i = SkipSpace(b, i); i >= len(b) || b[i] != '"' {
		return nil, i, unexpected(b, i, "a string")
	}
	end, special, err := skipString(b, i)
	if err != nil {
		return nil, end, err
	}
	value = b[i+1 : end-1 : end-1]
	if special {
		value = unescape(value)
	}
	return value, end, nil
}

// Unquote returns the value of a string literal, which must be all that lit holds but for white space around it.
func Unquote(lit []byte) (string, error) {
	value, end, err := String(lit, 0)
	if err != nil {
		return "", err
	}
	if end = SkipSpace(lit, end); end != len(lit) {
		return "", unexpected(lit, end, "nothing after the string")
	}
	return string(value), nil
}

// unescape returns the value of the text between the quotes of a validated string: s itself if it is its own value.
func unescape(s []byte) []byte {
	i := plainPrefix(s)
	if i == len(s) {
		return s
	}
	// No escape has a longer value than text; a byte that is not UTF-8 has one of three bytes, and is rare.
	value := append(make([]byte, 0, len(s)), s[:i]...)
	for i < len(s) {
		if s[i] == '\\' {
			var r rune
			r, i = readEscape(s, i)
			value = utf8.AppendRune(value, r)
			continue
		}
		r, size := utf8.DecodeRune(s[i:])
		value = utf8.AppendRune(value, r)
		i += size
	}
	return value
}

// plainPrefix returns how many bytes of s come before the first escape or byte that is not UTF-8.
func plainPrefix(s []byte) int {
	i := 0
	for i < len(s) && s[i] != '\\' {
		if s[i] < utf8.RuneSelf {
			i++
			continue
		}
		r, size := utf8.DecodeRune(s[i:])
		if r == utf8.RuneError && size == 1 {
			break
		}
		i += size
	}
	return i
}

// readEscape returns the character of the valid escape at i and the index after it. A pair of escaped surrogates is
// one character.
func readEscape(s []byte, i int) (r rune, end int) {
	switch c := s[i+1]; c {
	case 'b':
		return '\b', i + 2
	case 'f':
		return '\f', i + 2
	case 'n':
		return '\n', i + 2
	case 'r':
		return '\r', i + 2
	case 't':
		return '\t', i + 2
	case 'u':
		r, i = readHex(s, i+2), i+6
		if !utf16.IsSurrogate(r) {
			return r, i
		}
		if i+6 <= len(s) && s[i] == '\\' && s[i+1] == 'u' {
			if pair := utf16.DecodeRune(r, readHex(s, i+2)); pair != unicode.ReplacementChar {
				return pair, i + 6
			}
		}
		return unicode.ReplacementChar, i
	default: // a quote, a backslash or a slash
		return rune(c), i + 2
	}
}

func readHex(s []byte, i int) rune {
	var r rune
	for _, c := range s[i : i+4] {
		r = r<<4 | hexValue(c)
	}
	return r
}
