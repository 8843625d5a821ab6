package logprobs

import "unicode/utf8"

// AppendText appends what spans are told by: the text of a JSON string in which
// every character that is written as \u and is not ASCII becomes a replacement
// character. Anything else adds nothing. It allocates only to grow dst.
func AppendText(dst, val []byte) []byte {
	if len(val) < 2 || val[0] != '"' {
		return dst
	}
	val = val[1 : len(val)-1]
	for i := 0; i < len(val); i++ {
		if val[i] != '\\' || i+1 == len(val) {
			dst = append(dst, val[i])
			continue
		}
		i++
		switch val[i] {
		case 'n', 't', 'r', 'b', 'f':
			dst = append(dst, ' ')
		case 'u':
			dst = utf8.AppendRune(dst, hexRune(val[i+1:]))
			i = min(i+4, len(val))
		default:
			dst = append(dst, val[i])
		}
	}
	return dst
}

// hexRune is the ASCII character of four hexadecimal digits.
func hexRune(digits []byte) rune {
	if len(digits) < 4 {
		return utf8.RuneError
	}
	r := rune(0)
	for _, d := range digits[:4] {
		switch {
		case d >= '0' && d <= '9':
			r = r<<4 | rune(d-'0')
		case d|0x20 >= 'a' && d|0x20 <= 'f':
			r = r<<4 | rune(d|0x20-'a'+10)
		default:
			return utf8.RuneError
		}
	}
	if r >= utf8.RuneSelf {
		return utf8.RuneError
	}
	return r
}
