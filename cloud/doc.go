// Package cloud is the role "weir cloud": it wires the gateway, the control
// plane and the pool of instances to their listeners, and drains them at the
// end. Decisions are elsewhere: route/, gateway/, control/.
package cloud
