package names

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/weirlb/weir/discovery"
)

// The next process has the last answers until the DNS has answered each question, unless they are too old.
func TestAnswersOutliveTheProcess(t *testing.T) {
	z := &zone{records: []string{"a.example. 20 IN A 10.0.0.1", "a.example. 20 IN AAAA fd00::1"}}
	own, other := host("a.example"), host("b.example")
	expect := func(r *Resolver, when, want, fault string) {
		t.Helper()
		a := r.Answer("ns", own)
		if got := fmt.Sprint(a.Targets); got != want || strings.Join(a.Faults, "; ") != fault {
			t.Errorf("%s: %s %q, want %s %q", when, got, a.Faults, want, fault)
		}
	}
	synctest.Test(t, func(*testing.T) {
		var kept []Kept
		onZone(z, nil, func(r *Resolver) {
			r.Follow(slice("ns/web"), []discovery.NameQuestion{own})
			r.Settle()
			kept = r.Answers()
		})
		at := time.Now().UTC().Format(time.RFC3339)
		if len(kept) != 1 || kept[0].Check() != nil {
			t.Fatalf("kept: %+v", kept)
		}
		time.Sleep(KeptFor - time.Hour)
		z.set(dns.RcodeServerFailure)
		onZone(z, append(kept, Kept{"ns", "b.example", "", time.Now(), kept[0].Targets}), func(r *Resolver) {
			r.Follow(slice("ns/web"), []discovery.NameQuestion{own})
			r.Settle()
			expect(r, "no answer", "[10.0.0.1:0 [fd00::1]:0]", "SERVFAIL; the last answer before the start is kept, of "+at)
			if list := r.Answers(); len(list) != 2 || !list[0].At.Equal(kept[0].At) || list[1].Host != other.Host {
				t.Errorf("for the next process: %+v", list)
			}
			z.set(0, "a.example. 20 IN A 10.0.0.2")
			z.fail(dns.TypeAAAA)
			time.Sleep(maxRetry)
			expect(r, "half an answer", "[10.0.0.1:0 10.0.0.2:0 [fd00::1]:0]", "SERVFAIL; the last answer before the start is kept, of "+at)
			z.fail(0)
			time.Sleep(maxRetry)
			expect(r, "an answer", "[10.0.0.2:0]", "")
			z.set(dns.RcodeServerFailure)
			time.Sleep(maxRetry)
			expect(r, "no answer again", "[10.0.0.2:0]", "SERVFAIL; the last answer is kept")
		})
		time.Sleep(2 * time.Hour)
		onZone(z, kept, func(r *Resolver) {
			r.Follow(slice("ns/web"), []discovery.NameQuestion{own})
			r.Settle()
			expect(r, "too old", "[]", "SERVFAIL; there is no answer yet")
		})
	})
}

// An answer that no Resolver could have given is refused.
func TestKeptAnswersAreChecked(t *testing.T) {
	const good = `{"namespace":"ns","host":"a.example","at":"2026-01-02T03:04:05Z","targets":["10.0.0.1:0"]}`
	for text, want := range map[string]string{
		good: "",
		strings.Replace(good, `"at"`, `"service":"_http._tcp","at"`, 1):  "10.0.0.1:0 is no target",
		strings.Replace(good, `1:0"`, `1:80"`, 1):                        "10.0.0.1:80 is no target",
		strings.Replace(good, `10.0.0.1:0`, `[fe80::1%eth0]:0`, 1):       "is no target",
		strings.Replace(good, `1:0"`, `2:0","10.0.0.1:0"`, 1):            "targets are not sorted",
		strings.Replace(good, `"10.0.0.1:0"`, ``, 1):                     "0 targets",
		strings.Replace(good, `"ns"`, `"../ns"`, 1):                      "namespace \"../ns\"",
		strings.Replace(good, `a.example`, `a`, 1):                       "host \"a\"",
		strings.Replace(good, `a.example`, `a. example`, 1):              "host \"a. example\"",
		strings.Replace(good, `"at"`, `"service":"http","at"`, 1):        "service \"http\"",
		`{"namespace":"ns","host":"a.example","targets":["10.0.0.1:0"]}`: "without a time",
	} {
		var k Kept
		if err := json.Unmarshal([]byte(text), &k); err != nil {
			t.Fatal(err)
		}
		if err := k.Check(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if err := (&Kept{"ns", "a.example", "", time.Now(), make([]netip.AddrPort, maxAddresses+1)}).Check(); err == nil {
		t.Error("too many targets are no error")
	}
}
