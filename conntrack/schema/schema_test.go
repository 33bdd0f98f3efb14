package schema

import (
	"reflect"
	"strings"
	"testing"
)

type inner struct {
	A uint16
	B [3]uint64
}

type record struct {
	First  uint8
	_      [7]byte
	Inner  inner
	second uint32 `table:"other"`
	third  uint32 `table:"-"`
}

func TestASchemaIsThatOfTheType(t *testing.T) {
	_ = record{second: 1, third: 1}
	p := PartOf("things", reflect.TypeFor[record](), 64, 3)
	p.Bits = []Bits{{"First", "low", 0xf}}
	s := &Schema{Version: 7, Parts: []Part{p}, Values: []Value{{"set", "name", 9}}}
	const want = `version 7
part things 64 48 3
field First 0 1 1
field Inner.A 8 2 1
field Inner.B 16 8 3
field other 40 4 1
bits First low f
value set name 9
`
	if got := s.String(); got != want {
		t.Errorf("the schema is\n%s", got)
	}
	page := make([]byte, BlockEnd)
	page[versionOffset] = 7
	if err := s.Write(page); err != nil {
		t.Fatal(err)
	}
	got, err := Read(page, 64+3*48)
	if err != nil || !reflect.DeepEqual(got, s) {
		t.Errorf("read %+v, %v", got, err)
	}
	if _, err := Read(page, 64+3*48-1); err == nil {
		t.Error("the records are not within the table")
	}
}

// A later release may write more.
func TestWhatIsNotKnownIsIgnored(t *testing.T) {
	const text = "version 7 x\nnew line\npart p 0 8 1 y\nfield f 0 8 1 z\nlabel f 1\nvalue s n 1 2\n"
	s, err := Parse("version 7\npart p 0 8 1\nfield f 0 8 1\nvalue s n 1\n", 8)
	if err != nil {
		t.Fatal(err)
	}
	if later, err := Parse(strings.Replace(text, "new line\n", "", 1), 8); err != nil || !reflect.DeepEqual(later, s) {
		t.Errorf("%+v, %v", later, err)
	}
}

func TestASchemaThatMakesNoSenseIsRefused(t *testing.T) {
	for _, text := range []string{
		"field f 0 8 1", "version x", "version", "version 4294967296",
		"part p 0 8", "part p -8 8 1", "part p 8 8 1", "part p 0 9 1", "part p 0 0 1", "part p 0 -1 1", "part p 0 8 -1", "part p 0 1 9",
		"part p 0 4097 0", "part p 9223372036854775807 8 1", "part p 0 8 9223372036854775807",
		"part p 0 8 1\npart p 0 8 1", "part " + strings.Repeat("p", 41) + " 0 8 1",
		"part p 0 8 1\nfield f 0 3 1", "part p 0 8 1\nfield f 0 0 1", "part p 0 8 1\nfield f 1 8 1", "part p 0 8 1\nfield f -1 8 1",
		"part p 0 8 1\nfield f 0 8 2", "part p 0 8 1\nfield f 0 8 0", "part p 0 8 1\nfield f 0 8 9223372036854775807",
		"part p 0 8 1\nfield f 9223372036854775807 8 1", "part p 0 8 1\nfield f 0 8 1\nfield f 0 8 1",
		"part p 0 8 1\nbits f b 1", "part p 0 8 1\nfield f 0 8 1\nbits f b 0", "part p 0 8 1\nfield f 0 8 1\nbits f b -1",
		strings.Repeat("value s n 1\n", maxValues+1),
	} {
		if s, err := Parse(text, 8); err == nil {
			t.Errorf("%q is %+v", text, s)
		}
	}
}

func TestNumbersThatDoNotFitAreNotTranslated(t *testing.T) {
	from := &Part{Bits: []Bits{{"f", "a", 0xf0}, {"f", "b", 1}, {"f", "c", 2}, {"g", "b", 4}}}
	to := &Part{Bits: []Bits{{"f", "b", 0x80}, {"f", "a", 7}, {"f", "d", 8}, {"g", "c", 8}}}
	tr := Translate(from, to, "f")
	if v, ok := tr.Apply(0x73); v != 0x87 || !ok {
		t.Errorf("%#x, %v", v, ok)
	}
	if _, ok := tr.Apply(0x80); ok {
		t.Error("8 fits into 3 bits")
	}
}

// FuzzParse: what is accepted can be read without leaving the table, and means the same when it
// is written and read again.
func FuzzParse(f *testing.F) {
	f.Add("version 7\npart p 8 16 3\nfield f 0 8 2\nfield g 4 2 6\nbits f b ff00\nvalue s n 1\n", int64(64))
	f.Add("part p 0 8 1\npart q 4096 1 0\nlabel f 1\n", int64(8192))
	f.Add("part p 9223372036854775807 4096 1\n", int64(Everything))
	f.Fuzz(func(t *testing.T, text string, size int64) {
		if size < 0 || size > 1<<16 || len(text) > 1<<14 {
			return
		}
		s, err := Parse(text, size)
		if err != nil {
			return
		}
		table := make([]byte, size)
		for i := range s.Parts {
			p := &s.Parts[i]
			for n := range min(p.Count, 3) {
				record := p.Record(p.Records(table), p.Count-1-n)
				for _, field := range p.Fields {
					last, ok := p.Number(field.Name, field.Count-1)
					if !ok {
						t.Fatalf("no number %d of %s", field.Count-1, field.Name)
					}
					last.Store(record, last.Load(record))
				}
			}
			for _, b := range p.Bits {
				Translate(p, p, b.Field).Apply(b.Mask)
			}
		}
		again, err := Parse(s.String(), size)
		if err != nil || !reflect.DeepEqual(s, again) {
			t.Fatalf("%+v is read again as %+v, %v", s, again, err)
		}
	})
}
