package header

import (
	"encoding/binary"
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// slowSum is RFC 1071 word by word.
func slowSum(initial uint64, b []byte) uint16 {
	sum := uint64(Fold(initial))
	for ; len(b) > 1; b = b[2:] {
		sum += uint64(binary.LittleEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint64(b[0])
	}
	return Fold(sum)
}

func TestSumIsThatOfTheWords(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.OneOf(rapid.Byte(), rapid.Just(byte(0xff))), 0, 100).Draw(t, "bytes")
		initial := rapid.OneOf(rapid.Uint64(), rapid.Just(^uint64(0))).Draw(t, "initial")
		got, want := Fold(Sum(initial, b)), slowSum(initial, b)
		// 0 and 0xffff are the two zeros of one's complement.
		if got != want && got%0xffff+want%0xffff != 0 {
			t.Fatalf("Sum of %d bytes: %#04x, want %#04x", len(b), got, want)
		}
	})
}

func BenchmarkSum(b *testing.B) {
	data := make([]byte, 1500)
	for _, n := range []int{20, 40, 64, 1480} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var sum uint64
			for b.Loop() {
				sum = Sum(sum, data[:n])
			}
			_ = sum
		})
	}
}
