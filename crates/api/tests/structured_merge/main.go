// The library of kube-apiserver's server-side apply, driven by tests: reads one JSON document per line, writes one per line.
//
// The first line is {"schema", "type", "any"}; "any" are the object's fields with arbitrary JSON. Each further line is one write, {"reset", "operation", "manager", "force", "object"}; the answer is the object
// and who owns what of it, or the conflicts, or an error. A "reset" begins anew, with that object.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	"sigs.k8s.io/structured-merge-diff/fieldpath"
	"sigs.k8s.io/structured-merge-diff/merge"
	"sigs.k8s.io/structured-merge-diff/typed"
)

type same struct{}

func (same) Convert(object *typed.TypedValue, _ fieldpath.APIVersion) (*typed.TypedValue, error) {
	return object, nil
}

func (same) IsMissingVersionError(error) bool { return false }

type write struct {
	Reset     map[string]interface{}
	Operation string
	Manager   string
	Force     bool
	Object    map[string]interface{}
}

// What a nil of a typed object would come to. In arbitrary JSON it stays.
func typedObject(object map[string]interface{}, any map[string]bool) map[string]interface{} {
	for name, below := range object {
		if below == nil {
			delete(object, name)
		} else if !any[name] {
			object[name] = withoutNulls(below)
		}
	}
	return object
}

func withoutNulls(value interface{}) interface{} {
	switch value := value.(type) {
	case map[string]interface{}:
		for key, below := range value {
			if below == nil {
				delete(value, key)
			} else {
				value[key] = withoutNulls(below)
			}
		}
	case []interface{}:
		for index, below := range value {
			value[index] = withoutNulls(below)
		}
	}
	return value
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<26)
	lines.Scan()
	var first struct {
		Schema, Type string
		Any          []string
	}
	check(json.Unmarshal(lines.Bytes(), &first))
	any := map[string]bool{}
	for _, name := range first.Any {
		any[name] = true
	}
	parser, err := typed.NewParser(typed.YAMLObject(first.Schema))
	check(err)
	kind := parser.Type(first.Type)
	updater := &merge.Updater{Converter: same{}}
	var live *typed.TypedValue
	var managers fieldpath.ManagedFields
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var write write
		check(json.Unmarshal(lines.Bytes(), &write))
		if write.Reset != nil {
			live, err = kind.FromUnstructured(write.Reset)
			check(err)
			managers = fieldpath.ManagedFields{}
		}
		answer := map[string]interface{}{}
		object, err := kind.FromUnstructured(write.Object)
		if err == nil {
			before := managers.Copy()
			name := write.Operation + "/" + write.Manager
			if write.Operation == "Apply" {
				var applied *typed.TypedValue
				applied, managers, err = updater.Apply(live, object, "v1", managers, name, write.Force)
				if applied == nil {
					applied = live
				}
				object = applied
			} else {
				object, managers, err = updater.Update(live, object, "v1", managers, name)
			}
			if err != nil {
				managers = before
			} else {
				object := object.AsValue().Unstructured().(map[string]interface{})
				live, err = kind.FromUnstructured(typedObject(object, any))
				check(err)
			}
		}
		if conflicts, ok := err.(merge.Conflicts); ok {
			all := []string{}
			for _, conflict := range conflicts {
				all = append(all, conflict.Manager+": "+conflict.Path.String())
			}
			answer["conflicts"] = all
		} else if err != nil {
			answer["error"] = err.Error()
		} else {
			answer["object"] = live.AsValue().Unstructured()
			owned := map[string]json.RawMessage{}
			for manager, fields := range managers {
				owned[manager], err = fields.Set().ToJSON()
				check(err)
			}
			answer["managers"] = owned
		}
		check(out.Encode(answer))
	}
	check(lines.Err())
}
