package api_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/google/gopacket/pcapgo"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/pcapng"
)

// The document describes a line of an answer in lines, and a capture as a string.
func init() {
	openapi3filter.RegisterBodyDecoder("application/x-ndjson", func(
		r io.Reader, _ http.Header, _ *openapi3.SchemaRef, _ openapi3filter.EncodingFn,
	) (v any, err error) {
		for lines := bufio.NewScanner(r); lines.Scan() && err == nil; {
			v = nil
			err = json.Unmarshal(lines.Bytes(), &v)
		}
		return v, err
	})
	openapi3filter.RegisterBodyDecoder("application/x-pcapng", openapi3filter.FileBodyDecoder)
}

// The answer to a capture is a file from the first byte to the account at the end.
func TestACaptureIsAFile(t *testing.T) {
	w := httptest.NewRecorder()
	api.Handler(api.SourceOfExamples()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://weir/v1/capture", nil))
	var file bytes.Buffer
	packets, lost, err := pcapng.Copy(&file, w.Body)
	if packets != 1 || lost != 4 || err != nil {
		t.Errorf("%d packets, %d lost, %v", packets, lost, err)
	}
	// Each interface has the frames that were lost of it, also one without another frame.
	got, last := map[string][2]uint64{}, map[int]pcapgo.NgInterfaceStatistics{}
	r, err := pcapgo.NewNgReader(&file, pcapgo.NgReaderOptions{
		StatisticsCallback: func(of int, s pcapgo.NgInterfaceStatistics) { last[of] = s },
	})
	for err == nil {
		_, _, err = r.ReadPacketData()
	}
	for of, s := range last {
		i, _ := r.Interface(of)
		got[i.Name] = [2]uint64{s.PacketsReceived, s.PacketsDropped}
	}
	if want := map[string][2]uint64{"received": {3, 2}, "sent": {1, 1}, "eth9 sent": {1, 1}}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v: %v", got, want, err)
	}
}

func TestParametersOfPacketsAreChecked(t *testing.T) {
	h := api.Handler(api.SourceOfExamples())
	for target, want := range map[string]string{
		"/v1/trace?protocol=UDP&source=10.0.0.1:0&destination=10.0.0.2:53": "must have a port other than 0",
		"/v1/trace?protocol=UDP&source=10.0.0.1:1&destination=10.0.0.2:0":  "must have a port other than 0",
		"/v1/capture?packets=-1":       "packets: expected a positive number",
		"/v1/capture?seconds=x":        "seconds: expected a positive number",
		"/v1/trace/live?rate=0":        "rate: expected a positive number",
		"/v1/trace/live?snaplen=100":   "snaplen: unknown parameter",
		"/v1/drops?prefix=10":          "prefix: must be",
		"/v1/drops?prefix=10.0.0.1:80": `prefix: must be ADDRESS or a CIDR, is \"10.0.0.1:80\"`,
		"/v1/drops?prefix=10.0.0.1:0":  "prefix: port 0 is no port",
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://weir"+target, nil))
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %s", target, w.Code, w.Body)
		}
	}
}
