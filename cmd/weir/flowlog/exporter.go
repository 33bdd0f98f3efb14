package flowlog

import (
	"cmp"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/weirlb/weir/cmd/weir/flowlog/ipfix"
)

const (
	// messageSize is that of UDP datagrams, which fit into a packet of 1,500 bytes behind any header.
	messageSize = 1400
	// templatesEvery is how often templates are sent: a collector that has begun anew, or has lost
	// them, cannot read records before.
	templatesEvery = 10 * time.Second
	// sendTime bounds the wait for room in the socket.
	sendTime = time.Second
)

// exporter is a sink for a collector of IPFIX over UDP. A collector that is away is noticed where the
// network says so.
type exporter struct {
	collector netip.AddrPort
	conn      net.Conn
	message   ipfix.Message
	record    []byte
	sequence  uint32
	told      time.Time // when templates were last sent
	last      int       // records of the last message, which may have met nobody
	refused   error     // of a message before, in this write
}

func newExporter(collector netip.AddrPort) *exporter {
	return &exporter{collector: collector, message: ipfix.Message{Size: messageSize}}
}

func (x *exporter) write(events []Event) (lost int, err error) {
	if x.conn == nil {
		if x.conn, err = net.Dial("udp", x.collector.String()); err != nil {
			return len(events), err
		}
		x.told = time.Time{}
	}
	x.refused = nil
	x.begin()
	for i := range events {
		n, err := x.add(&events[i])
		if lost += n; err != nil {
			return lost + len(events) - i, err
		}
	}
	n, err := x.send()
	return lost + n, cmp.Or(err, x.refused)
}

// begin begins a message, with the templates if it is time for them.
func (x *exporter) begin() {
	x.message.Reset()
	if now := time.Now(); now.Sub(x.told) >= templatesEvery {
		x.told = now
		for i := range templates {
			x.message.Template(&templates[i])
		}
	}
}

// add adds an event to the message, and sends that before if there is no room. lost are records of
// earlier messages; of an error those of the message that was to be sent too, and not the event.
func (x *exporter) add(e *Event) (lost int, err error) {
	number := templateOf(e)
	x.record = appendEvent(x.record[:0], e)
	if x.message.Record(number, x.record) {
		return 0, nil
	}
	if lost, err = x.send(); err != nil {
		return lost, err
	}
	x.begin()
	if !x.message.Record(number, x.record) { // it is larger than a message
		lost++
	}
	return lost, nil
}

// send sends the message. That nobody listens shows at the next message, which has not been sent
// then: it is tried once more.
func (x *exporter) send() (lost int, err error) {
	n := x.message.Records()
	b := x.message.Bytes(time.Now(), x.sequence, 0)
	for range 2 {
		_ = x.conn.SetWriteDeadline(time.Now().Add(sendTime))
		if _, err = x.conn.Write(b); !errors.Is(err, syscall.ECONNREFUSED) {
			break
		}
		lost, x.last, x.refused = lost+x.last, 0, err
		x.told = time.Time{} // whoever listens next knows no templates
	}
	x.sequence += uint32(n)
	if x.last = n; err != nil {
		x.close()
		return lost + n, err
	}
	return lost, nil
}

func (x *exporter) close() {
	if x.conn != nil {
		_ = x.conn.Close()
		x.conn, x.last = nil, 0
	}
}

// Information elements (www.iana.org/assignments/ipfix). The tuple behind Weir has the elements of
// NAT (RFC 8158), and firewallEvent says whether a record is a beginning or an end.
var (
	commonFields = []ipfix.Field{
		{ID: 233, Length: 1},              // firewallEvent
		{ID: 4, Length: 1},                // protocolIdentifier
		{ID: 152, Length: 8},              // flowStartMilliseconds
		{ID: 153, Length: 8},              // flowEndMilliseconds
		{ID: 7, Length: 2},                // sourceTransportPort
		{ID: 11, Length: 2},               // destinationTransportPort
		{ID: 227, Length: 2},              // postNAPTSourceTransportPort
		{ID: 228, Length: 2},              // postNAPTDestinationTransportPort
		{ID: 96, Length: ipfix.Variable},  // applicationName: the Service
		{ID: 374, Length: ipfix.Variable}, // applicationGroupName: the zone of the endpoint
	}
	client4Fields   = []ipfix.Field{{ID: 8, Length: 4}, {ID: 12, Length: 4}}      // source and destination address
	client6Fields   = []ipfix.Field{{ID: 27, Length: 16}, {ID: 28, Length: 16}}   // the same of IPv6
	endpoint4Fields = []ipfix.Field{{ID: 225, Length: 4}, {ID: 226, Length: 4}}   // those behind Weir
	endpoint6Fields = []ipfix.Field{{ID: 281, Length: 16}, {ID: 282, Length: 16}} // the same of IPv6
	endFields       = []ipfix.Field{
		{ID: 136, Length: 1}, // flowEndReason
		{ID: 2, Length: 8},   // packetDeltaCount
		{ID: 1, Length: 8},   // octetDeltaCount
		{ID: 2, Length: 8, Enterprise: ipfix.Reverse},
		{ID: 1, Length: 8, Enterprise: ipfix.Reverse},
	}
)

// Bits of the number of a template.
const (
	ofClient6 = 1 << iota
	ofEndpoint6
	ofEnd
	templateCount = 1 << iota
)

var templates = makeTemplates()

func makeTemplates() (list [templateCount]ipfix.Template) {
	for i := range list {
		fields := append([]ipfix.Field{}, commonFields...)
		fields = append(fields, pick(i&ofClient6 != 0, client6Fields, client4Fields)...)
		fields = append(fields, pick(i&ofEndpoint6 != 0, endpoint6Fields, endpoint4Fields)...)
		if i&ofEnd != 0 {
			fields = append(fields, endFields...)
		}
		list[i] = ipfix.Template{Number: ipfix.FirstTemplate + uint16(i), Fields: fields}
	}
	return list
}

func pick(yes bool, a, b []ipfix.Field) []ipfix.Field {
	if yes {
		return a
	}
	return b
}

func templateOf(e *Event) uint16 {
	n := uint16(ipfix.FirstTemplate)
	if e.Client.Addr().Is6() {
		n += ofClient6
	}
	if e.Endpoint.Addr().Is6() {
		n += ofEndpoint6
	}
	if e.Event == End {
		n += ofEnd
	}
	return n
}

// firewallEvent
const (
	flowCreated = 1
	flowDeleted = 2
)

// endReasons are the values of flowEndReason (RFC 5102).
var endReasons = map[Reason]byte{
	Idle: 1, NoAnswer: 1, HalfOpen: 1, // idle timeout
	Closed: 3, Reset: 3, Refused: 3, // end of flow detected
	Ended: 4, Removed: 4, // forced end
	Evicted: 5, PortTaken: 5, // lack of resources
}

// appendEvent appends the record of an event, of templateOf.
func appendEvent(b []byte, e *Event) []byte {
	event, end := byte(flowCreated), e.Start
	if e.Event == End {
		event, end = flowDeleted, e.End
	}
	behind := e.SNAT
	if !behind.IsValid() {
		behind = e.Client
	}
	b = append(b, event, e.proto)
	b = binary.BigEndian.AppendUint64(b, uint64(e.Start.UnixMilli()))
	b = binary.BigEndian.AppendUint64(b, uint64(end.UnixMilli()))
	for _, at := range []netip.AddrPort{e.Client, e.Frontend, behind, e.Endpoint} {
		b = binary.BigEndian.AppendUint16(b, at.Port())
	}
	b = ipfix.AppendString(b, e.Service)
	b = ipfix.AppendString(b, e.Zone)
	b = append(b, e.Client.Addr().AsSlice()...)
	b = append(b, e.Frontend.Addr().AsSlice()...)
	b = append(b, sourceLike(behind.Addr(), e.Endpoint.Addr()).AsSlice()...)
	b = append(b, e.Endpoint.Addr().AsSlice()...)
	if e.Event != End {
		return b
	}
	b = append(b, endReasons[e.Reason])
	for _, n := range []uint64{e.ClientPackets, e.ClientBytes, e.EndpointPackets, e.EndpointBytes} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	return b
}

// sourceLike is the source, or where that is of another family than the endpoint, as in a tunnel,
// the unspecified address.
func sourceLike(source, endpoint netip.Addr) netip.Addr {
	switch {
	case source.Is4() == endpoint.Is4():
		return source
	case endpoint.Is4():
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}
