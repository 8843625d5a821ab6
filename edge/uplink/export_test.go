package uplink

// AllUp reports whether every gateway's link is up.
func (g *Group) AllUp() bool {
	for _, u := range g.links {
		if s, _, _ := u.state(); s != Up {
			return false
		}
	}
	return true
}
