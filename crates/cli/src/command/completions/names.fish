
# A name comes from whoever may make a volume: fish quotes what a substitution gives, and expands none of it.
function __rekindle_names
    set -l words (commandline -opc)
    set -l dir
    for at in (seq 2 (count $words))
        switch $words[$at]
            case --dir
                test $at -lt (count $words); and set dir --dir $words[(math $at + 1)]
            case '--dir=*'
                set dir --dir (string replace -- --dir= '' $words[$at])
        end
    end
    rekindle volume-names $argv $dir 2>/dev/null
end
complete -c rekindle -n '__fish_seen_subcommand_from VOLUMES' -f -a '(__rekindle_names)'
complete -c rekindle -n '__fish_seen_subcommand_from move; and string match -qr " move +[^- ]+ " -- (commandline -pc)' -f -a '(__rekindle_names --nodes)'
complete -c rekindle -n '__fish_seen_subcommand_from TRASH' -f -a '(__rekindle_names --trash)'
