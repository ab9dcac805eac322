package message

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/deltabridge/deltabridge/internal/change"
)

// ErrForeign is wrapped by ParseStored's error for a message that does not tell of an object: one that another program
// wrote, a watermark or a writer record.
var ErrForeign = errors.New("not a message about an object")

// ParseStored reads back from a message's headers what the stream says of its subject's object. Bodies are not needed, in
// either content mode. subject and sequence are those of the message; subject serves the error's text only. The error
// wraps ErrForeign, or names the header that does not parse.
func ParseStored(header map[string][]string, subject string, sequence uint64) (change.Stored, error) {
	stored := change.Stored{Sequence: sequence}
	fail := func(err error) (change.Stored, error) {
		return change.Stored{}, fmt.Errorf("message %d on %.300q: %w", sequence, subject, err)
	}
	typ, err := one(header, HeaderType)
	if err != nil {
		return fail(fmt.Errorf("%w: %w", ErrForeign, err))
	}
	name, ours := strings.CutPrefix(typ, typePrefix)
	op, known := change.ParseOp(name)
	if !ours || !known {
		return fail(fmt.Errorf("%w: %s is %.100q", ErrForeign, HeaderType, typ))
	}
	stored.Op = op
	uid, err := one(header, HeaderUID)
	if err != nil {
		return fail(err)
	}
	stored.UID = types.UID(uid)
	if stored.RV, err = one(header, HeaderRV); err != nil {
		return fail(err)
	}
	if _, has := header[HeaderEpoch]; has {
		text, epochErr := one(header, HeaderEpoch)
		if epochErr != nil {
			return fail(epochErr)
		}
		if stored.Epoch, err = strconv.ParseUint(text, 10, 64); err != nil {
			return fail(fmt.Errorf("header %s: %w", HeaderEpoch, err))
		}
	}
	return stored, nil
}

// one returns the decoded value of a header that must be there once and not be empty.
func one(header map[string][]string, name string) (string, error) {
	values := header[name]
	if len(values) != 1 || values[0] == "" {
		return "", fmt.Errorf("header %s: want one value, have %.100q", name, values)
	}
	value, err := DecodeHeaderValue(values[0])
	if err != nil {
		return "", fmt.Errorf("header %s: %w", name, err)
	}
	return value, nil
}
