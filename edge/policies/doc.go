// Package policies holds the cascade policies in force on an edge node: the
// settings of the tenant's snapshot, checked, and for each row of them the one
// controller that moves its threshold. Settings that are refused never replace
// good ones; what they say about privacy is kept all the same.
package policies
