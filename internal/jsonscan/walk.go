package jsonscan

// Object walks the object at i and returns the index after it. For each member, in order, it calls fn with the
// member's name (unescaped; it aliases b unless it needed unescaping), the index of the name's opening quote, and the
// index of the value's first byte, which exists. fn must consume the value, by Skip, Object, Array or String, and return
// the index after it; that makes one pass out of a walk through nested objects. If fn returns an error the walk ends
// with that error as it is. Equal names are reported as often as they occur.
//
// The nesting limit counts from each call of a function of this package. Where it must hold for a whole text that is
// walked by nested calls, use a Walker.
func Object(b []byte, i int, fn func(key []byte, keyStart, valueStart int) (valueEnd int, err error)) (end int, err error) {
	var w Walker
	return w.Object(b, i, fn)
}

// Array walks the array at i and returns the index after it. For each element it calls fn with its index in the array
// and the index of its first byte, which exists. fn must consume the element as in Object.
func Array(b []byte, i int, fn func(index, valueStart int) (valueEnd int, err error)) (end int, err error) {
	var w Walker
	return w.Array(b, i, fn)
}

// Walker has the package's walks as methods. They count the arrays and objects that calls of one Walker have entered
// and not yet left, so that MaxDepth holds for a text as a whole. The zero value is ready. After an error it must not
// be used again. A Walker serves one goroutine.
type Walker struct {
	depth int
}

// Skip is the function Skip, within what w has entered.
func (w *Walker) Skip(b []byte, i int) (end int, err error) {
	return skipValue(b, i, w.depth)
}

// Object is the function Object, within what w has entered. fn consumes values by the methods of w.
func (w *Walker) Object(b []byte, i int, fn func(key []byte, keyStart, valueStart int) (valueEnd int, err error)) (end int, err error) {
	if i = SkipSpace(b, i); i >= len(b) || b[i] != '{' {
		return i, unexpected(b, i, "an object")
	}
	if w.depth++; w.depth > MaxDepth {
		return i, tooDeep(i)
	}
	i = SkipSpace(b, i+1)
	if i < len(b) && b[i] == '}' {
		w.depth--
		return i + 1, nil
	}
	for {
		if i >= len(b) || b[i] != '"' {
			return i, unexpected(b, i, "a member's name")
		}
		keyStart := i
		var special bool
		if i, special, err = skipString(b, i); err != nil {
			return i, err
		}
		key := b[keyStart+1 : i-1 : i-1]
		if special {
			key = unescape(key)
		}
		if i = SkipSpace(b, i); i >= len(b) || b[i] != ':' {
			return i, unexpected(b, i, "':'")
		}
		if i = SkipSpace(b, i+1); i >= len(b) {
			return i, unexpected(b, i, "a value")
		}
		if end, err = fn(key, keyStart, i); err != nil {
			return end, err
		}
		if end <= i || end > len(b) {
			return i, notConsumed(i)
		}
		i = SkipSpace(b, end)
		if i < len(b) && b[i] == ',' {
			i = SkipSpace(b, i+1)
			continue
		}
		if i < len(b) && b[i] == '}' {
			w.depth--
			return i + 1, nil
		}
		return i, unexpected(b, i, "',' or '}'")
	}
}

// Array is the function Array, within what w has entered. fn consumes elements by the methods of w.
func (w *Walker) Array(b []byte, i int, fn func(index, valueStart int) (valueEnd int, err error)) (end int, err error) {
	if i = SkipSpace(b, i); i >= len(b) || b[i] != '[' {
		return i, unexpected(b, i, "an array")
	}
	if w.depth++; w.depth > MaxDepth {
		return i, tooDeep(i)
	}
	i = SkipSpace(b, i+1)
	if i < len(b) && b[i] == ']' {
		w.depth--
		return i + 1, nil
	}
	for index := 0; ; index++ {
		if i >= len(b) {
			return i, unexpected(b, i, "a value")
		}
		if end, err = fn(index, i); err != nil {
			return end, err
		}
		if end <= i || end > len(b) {
			return i, notConsumed(i)
		}
		i = SkipSpace(b, end)
		if i < len(b) && b[i] == ',' {
			i = SkipSpace(b, i+1)
			continue
		}
		if i < len(b) && b[i] == ']' {
			w.depth--
			return i + 1, nil
		}
		return i, unexpected(b, i, "',' or ']'")
	}
}

// notConsumed reports a callback that did not move on: going on would never end.
//
//go:noinline
func notConsumed(i int) error {
	return &SyntaxError{Offset: i, Msg: "the callback did not consume the value"}
}
