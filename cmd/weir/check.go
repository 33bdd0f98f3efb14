package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/cmd/weir/announcer"
	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/denylists"
	"github.com/weirlb/weir/cmd/weir/hostcheck"
	"github.com/weirlb/weir/cmd/weir/poolfile"
	"github.com/weirlb/weir/discovery/addresspool"
)

func newCheck() *cobra.Command {
	var flags *config.Flags
	var pools []string
	probes := false
	cmd := &cobra.Command{
		Use:   "check [flags]",
		Short: "Check the configuration and this machine for `weir run`",
		Long: `Prints all errors of the configuration and of this machine at once: fields,
interfaces, privileges, locked memory, neighbor tables, manifests, kernel features.
Errors go to standard error, a line each, findings to standard output. The flags are those of
weir run. Nothing is changed.

With --pools files of address pools are checked, and nothing else: the objects that
weir controller would not use, or use in part, with the field.

With --probe each probe of the health checks in the manifests is sent once, and nothing else
is checked.

Exit status 0 if weir run would start, serve all manifests and use all files of
announce.objects, or all probes pass, 1 if there are errors.`,
		Example: `  weir check --config /etc/weir/weir.yaml
  weir check --node-name edge-1 --manifests /etc/weir/manifests --interface eth0
  weir check --pools /etc/weir/pools.yaml`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(pools) > 0 {
				return checkPools(cmd.OutOrStdout(), cmd.ErrOrStderr(), pools)
			}
			if probes {
				return checkProbes(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), flags)
			}
			return runCheck(cmd.OutOrStdout(), cmd.ErrOrStderr(), flags)
		},
	}
	flags = config.AddFlags(cmd.Flags())
	cmd.Flags().StringSliceVar(&pools, "pools", nil, "check these `files` or directories of address pools alone")
	cmd.Flags().BoolVar(&probes, "probe", false, "send the probes of health checks once, and check nothing else")
	cmd.Flags().SortFlags = false
	return cmd
}

// checkPools says which pool objects weir controller would not use, or use in part.
func checkPools(stdout, stderr io.Writer, paths []string) error {
	objects, err := poolfile.Read(paths)
	if err != nil {
		printError(stderr, err)
	}
	c := addresspool.Decode(objects)
	wrong := err != nil
	for _, f := range c.Faults {
		if f.Used {
			fmt.Fprintf(stdout, "note  %v\n", f)
			continue
		}
		printError(stderr, f)
		wrong = true
	}
	for i := range c.Skipped {
		fmt.Fprintf(stdout, "note  %v\n", &c.Skipped[i])
	}
	fmt.Fprintf(stdout, "ok    %d pools, %d BGP advertisements, %d BGP peers, %d BFD profiles, %d L2 advertisements\n",
		len(c.Pools), len(c.Advertisements), len(c.Peers), len(c.BFDProfiles), len(c.LinkAdvertisements))
	if wrong {
		return silent(exitFailed)
	}
	return nil
}

func checkDenyLists(ctx context.Context, w io.Writer, cfg *config.Configuration, say func(error)) {
	lists, errs, err := denylists.Check(ctx, cfg)
	if err != nil {
		say(err)
	}
	for i := range lists {
		scope := "denied by all frontends"
		if lists[i].Services {
			scope = "denied by Services that name the list"
		}
		switch {
		case errors.Is(errs[i], denylists.ErrUnread):
			fmt.Fprintf(w, "note\tdenyLists[%d]\t%v\n", i, errs[i])
		case errs[i] != nil:
			say(errs[i])
		default:
			fmt.Fprintf(w, "ok\tdenyLists[%d]\t%s: %d prefixes, %s\n", i, lists[i].Name, len(lists[i].Prefixes), scope)
		}
	}
}

// otherNetwork is an error if the running Weir is in another network namespace: what is said of interfaces and
// endpoints is of this one.
func otherNetwork(ctx context.Context, cfg *config.Configuration) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	s, err := api.NewClient(cfg.Admin.Socket).Status(ctx)
	if err != nil {
		return nil // none runs, or it may not be asked
	}
	return hostcheck.SameNetwork(s.PID, "weir check")
}

// answerWithin is how long a running Weir may take to answer.
const answerWithin = 2 * time.Second

// objectsWithin is how long the API server may take for the objects of the announcement.
const objectsWithin = 15 * time.Second

func runCheck(stdout, stderr io.Writer, flags *config.Flags) error {
	wrong := 0
	say := func(err error) {
		printError(stderr, err)
		wrong++
	}
	cfg, err := flags.Load()
	if cfg == nil {
		// The machine can still be checked, by flags and defaults.
		say(err)
		cfg = config.Default()
	} else {
		for _, e := range config.Judge(cfg, err, config.SystemHost()) {
			say(e)
		}
	}
	t := tabwriter.NewWriter(stdout, 0, 8, 2, ' ', 0)
	if wrong == 0 {
		fmt.Fprintf(t, "ok\tconfiguration\tnode %s\n", cfg.NodeName)
	}
	for _, s := range cfg.Selections() {
		fmt.Fprintf(t, "ok\t%s\t%s: %s\n", s.Path, s.By, strings.Join(s.Names, ", "))
	}
	if err := otherNetwork(context.Background(), cfg); err != nil {
		fmt.Fprintf(t, "note\tnetwork namespace\t%v\n", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), objectsWithin)
	defer cancel()
	checkDenyLists(ctx, t, cfg, say)
	objects := announcer.CheckObjects(ctx, cfg)
	for _, err := range objects.Wrong {
		say(fmt.Errorf("announce.objects: %w", err))
	}
	for _, err := range objects.Notes {
		fmt.Fprintf(t, "note\tannounce.objects\t%v\n", err)
	}
	if objects.Used != "" {
		fmt.Fprintf(t, "ok\tannounce.objects\t%s\n", objects.Used)
	}
	for _, f := range append(hostcheck.Check(cfg), hostcheck.CheckFirewall(cfg, hostcheck.Frontends(cfg))...) {
		switch f.Level {
		case hostcheck.Wrong:
			say(errors.New(f.String()))
		case hostcheck.Note:
			fmt.Fprintf(t, "note\t%s\t%s\n", f.Subject, f.Line())
		default:
			fmt.Fprintf(t, "ok\t%s\t%s\n", f.Subject, f.Line())
		}
	}
	t.Flush()
	if wrong > 0 {
		return silent(exitFailed)
	}
	return nil
}
