package api

import (
	"strconv"
	"unicode/utf8"
)

const hexDigits = "0123456789abcdef"

// appendString appends s as a JSON string. Bytes that are not UTF-8 become
// U+FFFD. Characters that break JavaScript or HTML when embedded are not
// escaped: the API's answers are JSON, not scripts.
func appendString(dst, s []byte) []byte {
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c < utf8.RuneSelf {
			dst = appendEscape(append(dst, s[from:i]...), c)
			i++
			from = i
			continue
		}
		r, size := utf8.DecodeRune(s[i:])
		if r == utf8.RuneError && size == 1 {
			dst = append(append(dst, s[from:i]...), "\uFFFD"...)
			from = i + 1
		}
		i += size
	}
	return append(append(dst, s[from:]...), '"')
}

func appendEscape(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	}
	return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
}

// appendBytes appends b as a list of numbers.
func appendBytes(dst, b []byte) []byte {
	dst = append(dst, '[')
	for i, c := range b {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, uint64(c), 10)
	}
	return append(dst, ']')
}

// minLogprob stands for "as good as impossible", which JSON cannot say as
// -Inf. OpenAI uses the same number.
const minLogprob = -9999

func appendLogprob(dst []byte, x float32) []byte {
	if !(x > minLogprob) { // NaN as well
		x = minLogprob
	}
	return strconv.AppendFloat(dst, float64(x), 'g', -1, 32)
}
