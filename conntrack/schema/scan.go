package schema

import (
	"fmt"
	"strconv"
)

// hexNumber is a number in base 16.
type hexNumber uint64

// scan reads words into variables. A later release may have more words.
func scan(words []string, to ...any) (err error) {
	if len(words) < len(to) {
		return fmt.Errorf("%d words, want %d", len(words), len(to))
	}
	for i, v := range to {
		switch v := v.(type) {
		case *string:
			if len(words[i]) > maxName {
				return fmt.Errorf("a name of %d bytes", len(words[i]))
			}
			*v = words[i]
		case *int64:
			*v, err = strconv.ParseInt(words[i], 10, 64)
		case *uint64:
			*v, err = strconv.ParseUint(words[i], 10, 64)
		case *uint32:
			var n uint64
			n, err = strconv.ParseUint(words[i], 10, 32)
			*v = uint32(n)
		case *hexNumber:
			var n uint64
			n, err = strconv.ParseUint(words[i], 16, 64)
			*v = hexNumber(n)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
