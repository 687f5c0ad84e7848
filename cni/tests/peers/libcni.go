// A runtime that is libcni alone, as Debian packages it. Tests compare ours with it.
//
//	libcni load|add|check|del NET
//
// The configuration directory, the plugins, the cache and the attachment come from the environment.
// The loaded configuration or the result is printed on standard output, and libcni's error on
// standard error.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/containernetworking/cni/libcni"
)

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprint(os.Stderr, err)
		os.Exit(1)
	}
}

func run(command, network string) error {
	list, err := libcni.LoadConfList(os.Getenv("TEST_CONF_DIR"), network)
	if err != nil {
		return err
	}
	attachment := &libcni.RuntimeConf{
		ContainerID: os.Getenv("TEST_ID"),
		NetNS:       os.Getenv("TEST_NETNS"),
		IfName:      os.Getenv("TEST_IFNAME"),
	}
	for key, into := range map[string]interface{}{"TEST_ARGS": &attachment.Args, "TEST_CAPABILITY_ARGS": &attachment.CapabilityArgs} {
		if err := json.Unmarshal([]byte(os.Getenv(key)), into); err != nil {
			return err
		}
	}
	var plugins []string
	if err := json.Unmarshal([]byte(os.Getenv("TEST_BIN_DIRS")), &plugins); err != nil {
		return err
	}
	runtime := libcni.NewCNIConfigWithCacheDir(plugins, os.Getenv("TEST_CACHE_DIR"), nil)
	ctx := context.Background()
	switch command {
	case "load":
		var types []string
		for _, plugin := range list.Plugins {
			types = append(types, plugin.Network.Type)
		}
		return json.NewEncoder(os.Stdout).Encode([]interface{}{list.CNIVersion, list.DisableCheck, types})
	case "add":
		result, err := runtime.AddNetworkList(ctx, list, attachment)
		if err != nil {
			return err
		}
		return result.PrintTo(os.Stdout)
	case "check":
		return runtime.CheckNetworkList(ctx, list, attachment)
	case "del":
		return runtime.DelNetworkList(ctx, list, attachment)
	}
	return fmt.Errorf("unknown command %q", command)
}
