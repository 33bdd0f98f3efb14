package gateway

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// A Gateway that gets another class of this controller keeps the Service, and with it the address.
func TestAServiceKeepsItsName(t *testing.T) {
	var calls int
	in := manyGateways(1, 1, 1, &calls)
	svc := Translate(in).Services[0]
	in.Generated = append(in.Generated, svc)
	in.Classes = append(in.Classes, &gatewayv1.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: "weir-b"}, Spec: gatewayv1.GatewayClassSpec{ControllerName: ControllerName}})
	in.Gateways[0].Spec.GatewayClassName = "weir-b"
	out := Translate(in)
	if len(out.Services) != 1 || out.Services[0].Name != "g0-weir" || len(out.Slices) != 1 || out.Slices[0].Labels["kubernetes.io/service-name"] != "g0-weir" {
		t.Errorf("Services %+v, slices %+v", out.Services, out.Slices)
	}
	if name := ServiceNames(in.Generated)(in.Gateways[0]); name != "g0-weir" {
		t.Errorf("name %s", name)
	}
	// A Service of the name of another Gateway, which is gone, is not this one's.
	in.Gateways[0].UID = "next"
	if out := Translate(in); len(out.Services) != 1 || out.Services[0].Name == "g0-weir" {
		t.Errorf("Services %+v", out.Services)
	}
}
