package hostveth

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// comment is the user data of the rules of such a table, as nft stores a comment.
func comment(list []ruleChain) ([]byte, error) {
	sum := fnv.New64a()
	for _, c := range list {
		fmt.Fprintln(sum, c.name, c.kind, *c.hook, *c.priority)
		for _, rule := range c.rules {
			fmt.Fprintln(sum, len(rule))
			for _, e := range rule {
				b, err := expr.Marshal(byte(nftables.TableFamilyINet), e)
				if err != nil {
					return nil, fmt.Errorf("nftables: table inet %s: %w", tableName, err)
				}
				_, _ = sum.Write(b)
			}
		}
	}
	return userdata.AppendString(nil, userdata.TypeComment, fmt.Sprintf("weir %016x", sum.Sum64())), nil
}

// install puts the table into the kernel as far as the kernel can do it. marks is whether the rules
// of marks are wanted. An error of masquerading leaves those, and markErr is the reason why they are
// left out.
func (rl *ruleset) install(marks bool) (err, markErr error) {
	if marks {
		if markErr = rl.replace(true, true); markErr == nil {
			return nil, nil
		}
		if rl.replace(false, true) == nil {
			return markErr, nil
		}
	}
	return rl.replace(true, false), markErr
}

// ensure puts the table back as it was at first.
func (rl *ruleset) ensure() error { return rl.replace(rl.masquerade, rl.marks) }

// replace makes the table in a single transaction, in place of an existing table of
// the name.
func (rl *ruleset) replace(masquerade, marks bool) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	list := rl.chains(masquerade, marks)
	text, err := comment(list)
	if err != nil {
		return err
	}
	t := &nftables.Table{Family: nftables.TableFamilyINet, Name: tableName}
	c.AddTable(t) // so that deleting it is no error
	c.DelTable(t)
	c.AddTable(t)
	for _, rc := range list {
		chain := c.AddChain(&nftables.Chain{
			Name: rc.name, Table: t, Type: rc.kind, Hooknum: rc.hook, Priority: rc.priority,
		})
		for _, exprs := range rc.rules {
			c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: exprs, UserData: text})
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("nftables: table inet %s: %w%s", tableName, err, nftablesHint(err))
	}
	rl.masquerade, rl.marks = masquerade, marks
	return nil
}

// check reports whether all rules of the table are there.
func (rl *ruleset) check() (bool, error) {
	want := rl.chains(rl.masquerade, rl.marks)
	if len(want) == 0 {
		return true, nil // could not be programmed in the first place
	}
	text, err := comment(want)
	if err != nil {
		return false, err
	}
	c, err := nftables.New()
	if err != nil {
		return false, fmt.Errorf("nftables: %w", err)
	}
	t := &nftables.Table{Family: nftables.TableFamilyINet, Name: tableName}
	for _, rc := range want {
		have, err := c.GetRules(t, &nftables.Chain{Name: rc.name, Table: t})
		if errors.Is(err, unix.ENOENT) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("nftables: list table inet %s: %w", tableName, err)
		}
		if len(have) != len(rc.rules) {
			return false, nil
		}
		for _, r := range have {
			if !bytes.Equal(r.UserData, text) {
				return false, nil
			}
		}
	}
	return true, nil
}

// nftablesHint names the missing module if the kernel cannot do this.
func nftablesHint(err error) string {
	for _, missing := range []error{unix.ENOENT, unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT} {
		if errors.Is(err, missing) {
			return ": the kernel needs nf_tables, nf_conntrack, nf_nat, nft_masq and nft_ct (CONFIG_NF_TABLES_INET, CONFIG_NF_CONNTRACK, CONFIG_NF_CONNTRACK_MARK, CONFIG_NFT_NAT, CONFIG_NFT_MASQ, CONFIG_NFT_CT)"
		}
	}
	return ""
}

// removeRules removes the table. None there, or no nftables, is no error.
func removeRules() error {
	c, err := nftables.New()
	if err != nil {
		return nil
	}
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil // the kernel has no nftables, so no table either
	}
	for _, t := range tables {
		if t.Name == tableName {
			c.DelTable(t)
			if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("nftables: remove table inet %s: %w", tableName, err)
			}
		}
	}
	return nil
}
